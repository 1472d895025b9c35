//! Recurrent layers on a GPU, and the gates of the attention among them.

use super::{
    experts::dense,
    graph::{GpuModel, Input},
    linear::Prepared,
    memory::DeltaState,
};
use crate::{
    error::{Error, Result},
    formats::tensors::{Delta, Source},
    gpu::{encoder::Encoder, tensor::Tensor},
    ops::{
        recurrent::{self, DeltaRates, DeltaShape},
        tensor,
        transformer::{self, RmsNorm},
    },
};

/// Intermediate results of recurrent layers, and of gated attention, in buffers that all layers
/// share.
pub(super) struct RecurrentScratch {
    shape: DeltaShape,
    kernel: usize,
    /// Queries, keys, values and gates of attention, `[rows, row + heads · head_dim]`.
    pub attention: Tensor<f32>,
    /// Scales of the rates' matrices, `[value_heads]`.
    ones: Tensor<f32>,
    /// The layer's input, `[rows, hidden]`, for the rates.
    normed: Tensor<f32>,
    /// `[rows, value_heads]`
    alpha: Tensor<f32>,
    beta: Tensor<f32>,
    /// Queries, keys, values and gates, `[rows, mixed + values]`.
    pub input: Tensor<f32>,
    /// Queries, keys and values after the convolution, `[rows, mixed]`.
    mixed: Tensor<f32>,
    /// What value heads read, `[rows, values]`.
    read: Tensor<f32>,
    /// That normed and gated, and prepared for the output projection.
    pub output: Tensor<f32>,
    pub prepared: Prepared,
}

impl GpuModel {
    /// Allocates intermediate results of this many rows, where the model has recurrent layers.
    pub(super) fn recurrent_scratch(&self, rows: usize) -> Result<Option<RecurrentScratch>> {
        let (c, context) = (&self.config, &self.context);
        let Some(hybrid) = &c.hybrid else { return Ok(None) };
        let (heads, values, mixed) = (hybrid.value_heads, hybrid.values(), hybrid.mixed());
        let matrix = |columns| Tensor::uninit(context, [rows, columns]);
        Ok(Some(RecurrentScratch {
            shape: hybrid.shape(),
            kernel: hybrid.kernel,
            attention: matrix(c.attention().row() + c.heads * c.head_dim)?,
            ones: context.upload(&vec![1.0; heads], [heads])?,
            normed: matrix(c.hidden)?,
            alpha: matrix(heads)?,
            beta: matrix(heads)?,
            input: matrix(mixed + values)?,
            mixed: matrix(mixed)?,
            read: matrix(values)?,
            output: matrix(values)?,
            prepared: self.prepared([rows, values], Source::Attention)?,
        }))
    }

    /// Records what decays the states, and how much of a token is written to them, of the layer's
    /// input `x`.
    pub(super) fn delta_rates(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<f32>,
        gain: &Tensor<f32>,
        [alpha, beta]: [&Tensor<f32>; 2],
        s: &RecurrentScratch,
    ) -> Result<()> {
        RmsNorm::new(gain, self.config.eps).forward_into(encoder, x, &s.normed)?;
        for (matrix, y) in [(alpha, &s.alpha), (beta, &s.beta)] {
            let matrix = dense(encoder, matrix, &s.ones)?;
            transformer::dense_gemv(&s.normed, &matrix).forward_into(encoder, y)?;
        }
        Ok(())
    }

    /// Records convolution, delta rule and gated norm of [`RecurrentScratch::input`], with which
    /// each sequence continues its state.
    pub(super) fn delta(
        &self,
        encoder: &mut Encoder,
        memory: &DeltaState,
        input: &Input,
        delta: &Delta<Tensor<f32>>,
        s: &RecurrentScratch,
    ) -> Result<()> {
        let (shape, positions) = (s.shape, input.positions());
        let weights = delta.conv.reshape([shape.mixed(), s.kernel])?;
        let conv = recurrent::short_conv(&s.input, positions, &weights, &memory.conv);
        conv.forward_into(encoder, &s.mixed)?;
        let (alpha, beta) = (&s.alpha, &s.beta);
        let rates = DeltaRates { alpha, beta, dt_bias: &delta.dt_bias, decay: &delta.decay };
        let rule = recurrent::gated_delta(shape, &s.mixed, rates, positions, &memory.state);
        rule.forward_into(encoder, &s.read)?;
        let gain = (&delta.norm, self.config.eps);
        recurrent::gated_norm(shape, &s.read, gain, &s.input).forward_into(encoder, &s.output)
    }

    /// Records that queries, keys and values of [`RecurrentScratch::attention`] are `qkv`.
    pub(super) fn keep_gate(
        &self,
        encoder: &mut Encoder,
        qkv: &Tensor<f32>,
        s: &RecurrentScratch,
    ) -> Result<()> {
        let row = self.config.attention().row();
        tensor::slice(&s.attention, 1, 0..row).forward_into(encoder, qkv)
    }
}

/// A recurrent step of a model whose configuration has none, or of a layer without a state.
pub(super) fn no_hybrid() -> Error {
    Error::Invalid { op: "model", what: "recurrent layers without their configuration".into() }
}
