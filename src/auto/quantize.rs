//! Quantizers.

use super::{
    answer::Answer,
    dispatch::{Auto, Call, Op},
    operand::{Operand, Stored},
};
use crate::{
    cpu,
    error::{Error, Result},
    ops::bitnet::{ActivationQuantizer, QuantizedActivations, QuantizedWeights, WeightQuantizer},
    shape::Shape,
};

impl Auto {
    /// Quantizes activations `[tokens, features]` to 8 bits, with a scale for each token, as
    /// [`ActivationQuantizer::int8`] does. Returns
    /// [`HostActivations`](crate::cpu::HostActivations) or [`QuantizedActivations`].
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not such rows; what the device reports.
    pub fn quantize_activations<A: Operand + ?Sized>(
        &self,
        x: &A,
        tokens: usize,
        features: usize,
    ) -> Result<Answer<A::Result<QuantizedActivations>>> {
        let x = x.view();
        if tokens.checked_mul(features) != Some(x.len()) {
            return Err(Error::Length { shape: [tokens, features].into(), found: x.len() });
        }
        A::answer(self.run(
            // Codes are a byte each.
            Call::new(Op::QuantizeActivations, x.len(), x.len() / 4, (A::READS, &[x])),
            || cpu::quantize_activations(&x.host()?, tokens, features),
            |e| {
                let x = x.on(e.context(), [tokens, features])?;
                ActivationQuantizer::int8().quantize(e, &x)
            },
        )?)
    }

    /// Quantizes weights of `shape`, `[.., columns]`, as [`WeightQuantizer::quantize`] does.
    /// Returns a packed matrix, or a matrix on the GPU.
    ///
    /// # Errors
    /// As [`cpu::quantize_weights`]; what the device reports.
    pub fn quantize_weights<A, M>(
        &self,
        w: &A,
        shape: impl Into<Shape>,
        quantizer: WeightQuantizer<M>,
    ) -> Result<Answer<A::Result<M>>>
    where
        A: Operand + ?Sized,
        M: QuantizedWeights + Stored<Host = <M as QuantizedWeights>::Packed>,
    {
        let (w, shape) = (w.view(), shape.into());
        if shape.checked_len() != Some(w.len()) {
            return Err(Error::Length { shape, found: w.len() });
        }
        A::answer(self.run(
            // Codes are two bits or more.
            Call::new(Op::QuantizeWeights, w.len(), w.len() / 16, (A::READS, &[w])),
            || cpu::quantize_weights(&w.host()?, shape, quantizer),
            |e| {
                let w = w.on(e.context(), shape)?;
                quantizer.quantize(e, &w)
            },
        )?)
    }
}
