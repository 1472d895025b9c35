//! Recurrent layers on a GPU, and the gates of the attention among them.

use super::{
    experts::dense,
    graph::{GpuModel, Input},
    linear::Prepared,
    memory::{DeltaInputs, DeltaState},
};
use crate::{
    error::{Error, Result},
    formats::{
        Hybrid,
        tensors::{Delta, Source},
    },
    gpu::{context::Context, encoder::Encoder, tensor::Tensor},
    ops::{
        recurrent::{self, DeltaRates, DeltaShape},
        tensor,
        transformer::{self, CachePositions, RmsNorm},
    },
};

/// Intermediate results of recurrent layers, and of gated attention, in buffers that all layers
/// share.
pub(super) struct RecurrentScratch {
    shape: DeltaShape,
    /// Queries, keys, values and gates of attention, `[rows, row + heads · head_dim]`.
    pub attention: Tensor<f32>,
    /// Scales of the rates' matrices, `[value_heads]`.
    ones: Tensor<f32>,
    /// The layer's input, `[rows, hidden]`, for the rates.
    normed: Tensor<f32>,
    /// What a layer's states are advanced by.
    pub inputs: DeltaInputs,
    rule: DeltaScratch,
    /// That normed and gated, and prepared for the output projection.
    pub output: Tensor<f32>,
    pub prepared: Prepared,
}

/// Intermediate results of the delta rule.
pub(super) struct DeltaScratch {
    /// Queries, keys and values after the convolution, `[rows, mixed]`.
    mixed: Tensor<f32>,
    /// What value heads read, `[rows, values]`.
    read: Tensor<f32>,
}

impl DeltaScratch {
    /// That of this many rows.
    pub fn new(context: &Context, hybrid: &Hybrid, rows: usize) -> Result<Self> {
        let matrix = |columns| Tensor::uninit(context, [rows, columns]);
        Ok(Self { mixed: matrix(hybrid.mixed())?, read: matrix(hybrid.values())? })
    }
}

impl GpuModel {
    /// Allocates intermediate results of this many rows, where the model has recurrent layers.
    pub(super) fn recurrent_scratch(&self, rows: usize) -> Result<Option<RecurrentScratch>> {
        let (c, context) = (&self.config, &self.context);
        let Some(hybrid) = &c.hybrid else { return Ok(None) };
        let (heads, values) = (hybrid.value_heads, hybrid.values());
        let matrix = |columns| Tensor::uninit(context, [rows, columns]);
        Ok(Some(RecurrentScratch {
            shape: hybrid.shape(),
            attention: matrix(c.attention().row() + c.heads * c.head_dim)?,
            ones: context.upload(&vec![1.0; heads], [heads])?,
            normed: matrix(c.hidden)?,
            inputs: DeltaInputs::new(context, hybrid, rows)?,
            rule: DeltaScratch::new(context, hybrid, rows)?,
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
        for (matrix, y) in [(alpha, &s.inputs.alpha), (beta, &s.inputs.beta)] {
            let matrix = dense(encoder, matrix, &s.ones)?;
            transformer::dense_gemv(&s.normed, &matrix).forward_into(encoder, y)?;
        }
        Ok(())
    }

    /// Records convolution, delta rule and gated norm of [`RecurrentScratch::inputs`], with which
    /// each sequence continues its state.
    pub(super) fn delta(
        &self,
        encoder: &mut Encoder,
        memory: &DeltaState,
        input: &Input,
        delta: &Delta<Tensor<f32>>,
        s: &RecurrentScratch,
    ) -> Result<()> {
        self.advance(encoder, (memory, input.positions()), delta, &s.inputs, &s.rule)?;
        let gain = (&delta.norm, self.config.eps);
        recurrent::gated_norm(s.shape, &s.rule.read, gain, &s.inputs.x)
            .forward_into(encoder, &s.output)
    }

    /// Records convolution and delta rule, by which sequences continue their states.
    pub(super) fn advance(
        &self,
        encoder: &mut Encoder,
        (memory, positions): (&DeltaState, CachePositions<'_>),
        delta: &Delta<Tensor<f32>>,
        DeltaInputs { x, alpha, beta }: &DeltaInputs,
        DeltaScratch { mixed, read }: &DeltaScratch,
    ) -> Result<()> {
        let hybrid = self.config.hybrid.as_ref().ok_or_else(no_hybrid)?;
        let weights = delta.conv.reshape([hybrid.mixed(), hybrid.kernel])?;
        let conv = recurrent::short_conv(x, positions, &weights, &memory.conv);
        conv.forward_into(encoder, mixed)?;
        let rates = DeltaRates { alpha, beta, dt_bias: &delta.dt_bias, decay: &delta.decay };
        recurrent::gated_delta(hybrid.shape(), mixed, rates, positions, &memory.state)
            .forward_into(encoder, read)
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
