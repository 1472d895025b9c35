//! Products: of dense matrices, and with ternary weights.

use super::{
    answer::Answer,
    crossing::Work,
    dispatch::{Auto, Call, Op, Sides},
    operand::{Numbers, Operand, Placed, Stored, Value},
};
use crate::{
    cpu::{self, isa::Isa, ternary},
    error::{Error, Result},
    gpu::tensor::Tensor,
    ops::{
        bitnet::{BitLinear, QuantizedActivations},
        tensor,
    },
    weights::ternary::{
        interleaved::InterleavedTernary, matrix::TernaryMatrix, packed::PackedTernary,
    },
};
use std::sync::Arc;

/// Ternary weights for CPU and GPU, from [`Auto::weights`].
#[derive(Clone, Debug)]
pub struct AutoTernary {
    host: InterleavedTernary,
    /// On the GPU, or why not; `None` where there is no GPU.
    device: Option<Result<TernaryMatrix, Arc<Error>>>,
}

impl AutoTernary {
    fn device(&self) -> Result<&TernaryMatrix> {
        match &self.device {
            Some(Ok(weights)) => Ok(weights),
            _ => Err(Error::other_device("bitlinear", "`codes`")),
        }
    }

    /// A call of a product with an input that can be on these sides.
    fn call(&self, tokens: usize, call: Call) -> Call {
        let work = self.host.rows().saturating_mul(self.host.columns()).saturating_mul(tokens);
        let sides = match (&self.device, call.sides) {
            (Some(Ok(_)), sides) => sides,
            (Some(Err(failure)), _) => Sides::Cpu(Some(failure.clone())),
            (None, _) => Sides::Cpu(None),
        };
        Call { work: Work { operations: work, ..call.work }, sides, ..call }
    }
}

impl Auto {
    /// Returns ternary weights for [`Auto::bitlinear`]: in host memory, and on the GPU too where
    /// there is one. If that fails and the policy is [`GpuFailure::ComputeOnCpu`](super::GpuFailure::ComputeOnCpu), calls with them
    /// run on the CPU, and their answers have the failure.
    ///
    /// # Errors
    /// As [`PackedTernary::upload`].
    pub fn weights(&self, weights: PackedTernary) -> Result<AutoTernary> {
        let device = match self.context.as_ref().map(|context| weights.upload(context)) {
            None => None,
            Some(Err(error)) if self.falls_back(&error) => {
                Some(Err(self.failed("bitlinear", error)))
            }
            Some(uploaded) => Some(Ok(uploaded?)),
        };
        Ok(AutoTernary { host: InterleavedTernary::new(&weights), device })
    }

    /// Returns the product of `x` `[tokens, k]` and ternary weights, `[tokens, n]`, as
    /// [`BitLinear`] does with int8 activations.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not such rows; [`Error::Dispatch`] for weights of another
    /// [`Auto`]'s GPU; what the device reports.
    pub fn bitlinear<A: Operand + ?Sized>(
        &self,
        x: &A,
        tokens: usize,
        w: &AutoTernary,
    ) -> Result<Numbers<A>> {
        let (x, shape) = (x.view(), [tokens, w.host.columns()]);
        if tokens.checked_mul(shape[1]) != Some(x.len()) {
            return Err(Error::Length { shape: shape.into(), found: x.len() });
        }
        let results = tokens.saturating_mul(w.host.rows());
        A::answer(self.run(
            w.call(tokens, Call::new(Op::BitLinear, 0, results, (A::READS, &[x]))),
            || cpu::BitLinear::new(&w.host).forward(&x.host()?, tokens),
            |e| {
                let (w, x) = (w.device()?, x.on(e.context(), shape)?);
                BitLinear::new(w).forward(e, &x)
            },
        )?)
    }

    /// Returns the product of quantized activations and ternary weights, where the activations are.
    ///
    /// # Errors
    /// [`Error::Shape`] if they do not fit the weights; else as [`Auto::bitlinear`].
    pub fn bitlinear_quantized(
        &self,
        x: &Placed<QuantizedActivations>,
        w: &AutoTernary,
    ) -> Result<Answer<Value>> {
        let (sides, tokens) = match x {
            Placed::Cpu(x) => (Sides::Cpu(None), x.tokens),
            Placed::Gpu(x) => (Sides::Gpu, x.tokens()),
        };
        let call = Call { sides, ..Call::new(Op::BitLinear, 0, 0, (false, &[])) };
        self.run::<Tensor<f32>>(
            w.call(tokens, call),
            || match x {
                Placed::Cpu(x) => ternary::bitlinear(Isa::best(), x, &w.host),
                Placed::Gpu(x) => ternary::bitlinear(Isa::best(), &Stored::read(x)?, &w.host),
            },
            |e| match x {
                Placed::Gpu(x) => BitLinear::new(w.device()?).forward(e, x),
                Placed::Cpu(_) => Err(Error::other_device("bitlinear", "`x`")),
            },
        )
    }

    /// Returns a·b: `[m, k]` by `[k, n]` gives `[m, n]`.
    ///
    /// # Errors
    /// [`Error::Length`] if a side has not as many numbers; what the device reports.
    pub fn matmul<A: Operand + ?Sized>(
        &self,
        a: &A,
        b: &(impl Operand + ?Sized),
        [m, k, n]: [usize; 3],
    ) -> Result<Numbers<A>> {
        let sides = [(a.view(), [m, k]), (b.view(), [k, n])];
        for (side, shape) in sides {
            if shape[0].checked_mul(shape[1]) != Some(side.len()) {
                return Err(Error::Length { shape: shape.into(), found: side.len() });
            }
        }
        let results = m.checked_mul(n).ok_or(Error::Length { shape: [m, n].into(), found: 0 })?;
        let [a, b] = sides;
        A::answer(self.run(
            Call::new(Op::Matmul, results.saturating_mul(k), results, (A::READS, &[a.0, b.0])),
            || cpu::matmul(&a.0.host()?, &b.0.host()?, [m, k, n]),
            |e| {
                let [a, b] = sides.map(|(side, shape)| side.on(e.context(), shape));
                tensor::matmul(&a?, &b?).forward(e)
            },
        )?)
    }
}
