//! Quantized activations in a layout of the test's choice.

use bitnet_wgpu::{
    Encoder, Result, Tensor,
    bitnet::{ActivationQuantizer, Layout, QuantizedActivations},
    tensor::Float,
};

/// Quantizes to int8 per token, in `layout`.
pub fn quantize_as<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    layout: Layout,
) -> Result<QuantizedActivations> {
    ActivationQuantizer::int8().layout(layout).quantize(encoder, x)
}
