//! How a model's files are read.

use super::{family::RotaryOrder, gguf::blocks::I2sLayout, scale_rule::ScaleRule};

/// How a model's files are read where they do not say it, or not what the caller wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    pub(crate) quantize: bool,
    pub(crate) quantized_activations: Option<bool>,
    pub(crate) i2s_layout: Option<I2sLayout>,
    pub(crate) scale_rule: Option<ScaleRule>,
    pub(crate) rotary_order: Option<RotaryOrder>,
}

impl ReadOptions {
    /// Quantizes linear layers that are stored in floats even if nothing in the files says that the
    /// model was trained for ternary weights. Such a model is an error by default; quantized, it
    /// writes gibberish unless it was trained so.
    #[must_use]
    pub fn quantize(self, quantize: bool) -> Self {
        Self { quantize, ..self }
    }

    /// Sets whether linear layers quantize their activations. By default, or with `None`, the files
    /// say it. Those of a ternary Llama do not. Of a directory, such activations are floats if a
    /// matrix has several scales or is in f16 (TriLM's have and are, Falcon-E's not). Of a GGUF file
    /// of `llama`, they are quantized, except for TriLM's, which is known by its name or by a
    /// matrix with several scales.
    #[must_use]
    pub fn quantized_activations(self, quantized: impl Into<Option<bool>>) -> Self {
        Self { quantized_activations: quantized.into(), ..self }
    }

    /// Sets the layout of the I2_S tensors of a GGUF file. By default, or with `None`, it is found
    /// by the weights, and logged: in a trained model, columns with larger gains have other numbers
    /// of zeros. Where the weights do not tell, as random ones, it is [`I2sLayout::X86`]. A layout
    /// that contradicts the weights is used, with a warning.
    #[must_use]
    pub fn i2s_layout(self, i2s_layout: impl Into<Option<I2sLayout>>) -> Self {
        Self { i2s_layout: i2s_layout.into(), ..self }
    }

    /// Sets what the stored scales of packed weights mean in a directory. By default, or with
    /// `None`, `quantization_config` says it. Without one, scales far from 1 say it, and others are
    /// an error.
    #[must_use]
    pub fn scale_rule(self, scale_rule: impl Into<Option<ScaleRule>>) -> Self {
        Self { scale_rule: scale_rule.into(), ..self }
    }

    /// Sets the order of query and key rows of a GGUF file. The default is the architecture's.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn rotary_order(self, rotary_order: RotaryOrder) -> Self {
        Self { rotary_order: Some(rotary_order), ..self }
    }
}
