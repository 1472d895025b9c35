//! Ops on rows: softmax, norms, sums.

use super::{
    answer::Answer,
    dispatch::{Auto, Call, Op},
    operand::{Numbers, Operand, Value, View},
};
use crate::{
    cpu,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    ops::{
        tensor::{self, Axes, layer_norm::LayerNorm},
        transformer::RmsNorm,
    },
};

impl Auto {
    /// Returns the [`softmax`](fn@tensor::softmax) of rows of this many columns.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows; what the device reports.
    pub fn softmax<A: Operand + ?Sized>(&self, x: &A, columns: usize) -> Result<Numbers<A>> {
        A::answer(self.rows(
            Op::Softmax,
            (A::READS, x.view()),
            columns,
            |x| cpu::softmax(x, columns),
            |e, x| tensor::softmax(x).forward(e),
        )?)
    }

    /// Returns the RMSNorm of rows with as many columns as `gain`, as [`RmsNorm`] does.
    ///
    /// # Errors
    /// As [`Auto::softmax`].
    pub fn rms_norm<A: Operand + ?Sized>(
        &self,
        x: &A,
        gain: &(impl Operand + ?Sized),
        eps: f32,
    ) -> Result<Numbers<A>> {
        let gain = gain.view();
        A::answer(self.rows(
            Op::RmsNorm,
            (A::READS, x.view()),
            gain.len(),
            |x| cpu::rms_norm(x, &gain.host()?, eps),
            |e, x| {
                let gain = gain.on(e.context(), [gain.len()])?;
                RmsNorm::new(&gain, eps).forward(e, x)
            },
        )?)
    }

    /// Returns the layer norm of rows with as many columns as `weight` and `bias`, as [`LayerNorm`]
    /// does.
    ///
    /// # Errors
    /// As [`Auto::softmax`]; [`Error::Length`] if there are not as many weights as biases.
    pub fn layer_norm<A: Operand + ?Sized>(
        &self,
        x: &A,
        weight: &(impl Operand + ?Sized),
        bias: &(impl Operand + ?Sized),
        eps: f32,
    ) -> Result<Numbers<A>> {
        let (weight, bias) = (weight.view(), bias.view());
        if bias.len() != weight.len() {
            return Err(Error::Length { shape: weight.shape(), found: bias.len() });
        }
        A::answer(self.rows(
            Op::LayerNorm,
            (A::READS, x.view()),
            weight.len(),
            |x| cpu::layer_norm(x, &weight.host()?, &bias.host()?, eps),
            |e, x| {
                let [w, b] = [weight, bias].map(|side| side.on(e.context(), [weight.len()]));
                LayerNorm::new(&w?, &b?, eps).forward(e, x)
            },
        )?)
    }

    /// Returns the sum of all numbers, as [`sum`](fn@tensor::sum) adds them: one value.
    ///
    /// # Errors
    /// What the device reports.
    pub fn sum<A: Operand + ?Sized>(&self, x: &A) -> Result<Numbers<A>> {
        let x = x.view();
        A::answer(self.run(
            Call::new(Op::Sum, x.len(), 1, (A::READS, &[x])),
            || Ok(vec![cpu::sum(&x.host()?)]),
            |e| tensor::sum(&x.on(e.context(), [x.len()])?, Axes::ALL).forward(e),
        )?)
    }

    /// An op on rows; parameters of a row are not counted among what is transferred.
    fn rows(
        &self,
        op: Op,
        (reads, x): (bool, View<'_>),
        columns: usize,
        cpu: impl Fn(&[f32]) -> Result<Vec<f32>>,
        gpu: impl Fn(&mut Encoder, &Tensor<f32>) -> Result<Tensor<f32>>,
    ) -> Result<Answer<Value>> {
        let shape = [x.len() / columns.max(1), columns];
        if shape[0] * columns != x.len() {
            return Err(Error::Length { shape: shape.into(), found: x.len() });
        }
        self.run(
            Call::new(op, x.len(), x.len(), (reads, &[x])),
            || cpu(&x.host()?),
            |e| {
                let x = x.on(e.context(), shape)?;
                gpu(e, &x)
            },
        )
    }
}
