//! Ops on each number, or on pairs of numbers.

use super::{
    answer::Answer,
    dispatch::{Auto, Call, Op},
    operand::{Numbers, Operand, Value, View},
};
use crate::{
    cpu,
    error::{Error, Result},
    gpu::tensor::Tensor,
    ops::{
        op_tables::Unary,
        tensor::{self, binary::Binary},
    },
};

impl Auto {
    /// Returns a + b, number by number, in the shape of `a`.
    ///
    /// # Errors
    /// [`Error::Length`] if there are not as many of both; what the device reports.
    pub fn add<A: Operand + ?Sized>(
        &self,
        a: &A,
        b: &(impl Operand + ?Sized),
    ) -> Result<Numbers<A>> {
        A::answer(self.pairs(Op::Add, A::READS, a.view(), b.view(), cpu::add, tensor::add)?)
    }

    /// Returns a·b, number by number, in the shape of `a`.
    ///
    /// # Errors
    /// As [`Auto::add`].
    pub fn mul<A: Operand + ?Sized>(
        &self,
        a: &A,
        b: &(impl Operand + ?Sized),
    ) -> Result<Numbers<A>> {
        A::answer(self.pairs(Op::Mul, A::READS, a.view(), b.view(), cpu::mul, tensor::mul)?)
    }

    /// Returns [`relu2`](fn@tensor::relu2) of each number.
    ///
    /// # Errors
    /// What the device reports.
    pub fn relu2<A: Operand + ?Sized>(&self, x: &A) -> Result<Numbers<A>> {
        A::answer(self.each(Op::Relu2, A::READS, x.view(), cpu::relu2, tensor::relu2)?)
    }

    /// Returns [`silu`](fn@tensor::silu) of each number.
    ///
    /// # Errors
    /// What the device reports.
    pub fn silu<A: Operand + ?Sized>(&self, x: &A) -> Result<Numbers<A>> {
        A::answer(self.each(Op::Silu, A::READS, x.view(), cpu::silu, tensor::silu)?)
    }

    /// Returns [`gelu`](fn@tensor::gelu) of each number.
    ///
    /// # Errors
    /// What the device reports.
    pub fn gelu<A: Operand + ?Sized>(&self, x: &A) -> Result<Numbers<A>> {
        A::answer(self.each(Op::Gelu, A::READS, x.view(), cpu::gelu, tensor::gelu)?)
    }

    fn each(
        &self,
        op: Op,
        reads: bool,
        x: View<'_>,
        cpu: fn(&[f32]) -> Vec<f32>,
        gpu: fn(&Tensor<f32>) -> Unary<'_, f32>,
    ) -> Result<Answer<Value>> {
        self.run(
            Call::new(op, x.len(), x.len(), (reads, &[x])),
            || Ok(cpu(&x.host()?)),
            |e| gpu(&x.on(e.context(), x.shape())?).forward(e),
        )
    }

    fn pairs(
        &self,
        op: Op,
        reads: bool,
        a: View<'_>,
        b: View<'_>,
        cpu: fn(&[f32], &[f32]) -> Result<Vec<f32>>,
        gpu: for<'a> fn(&'a Tensor<f32>, &'a Tensor<f32>) -> Binary<'a, f32>,
    ) -> Result<Answer<Value>> {
        if b.len() != a.len() {
            return Err(Error::Length { shape: a.shape(), found: b.len() });
        }
        self.run(
            Call::new(op, a.len(), a.len(), (reads, &[a, b])),
            || cpu(&a.host()?, &b.host()?),
            |e| {
                let [a, b] = [a, b].map(|side| side.on(e.context(), a.shape()));
                gpu(&a?, &b?).forward(e)
            },
        )
    }
}
