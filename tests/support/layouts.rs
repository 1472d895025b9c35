//! Ops that quantise activations, in a layout of the test's choice.

use bitnet_wgpu::{
    Encoder, Float, Result, Tensor,
    bitnet::{self, Gate, Layout, Norm, QuantizedActivations},
};

/// `quantize_activations` in `layout`.
pub fn quantize_as<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    layout: Layout,
) -> Result<QuantizedActivations> {
    let (tokens, features) = x.shape().as_matrix();
    let xq = QuantizedActivations::uninit(encoder.context(), tokens, features, layout)?;
    bitnet::quantize_activations_into(encoder, x, &xq)?;
    Ok(xq)
}

/// `rms_norm_quantize` in `layout`.
pub fn rms_norm_quantize_as<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
    layout: Layout,
) -> Result<QuantizedActivations> {
    let (tokens, features) = x.shape().as_matrix();
    let xq = QuantizedActivations::uninit(encoder.context(), tokens, features, layout)?;
    bitnet::rms_norm_quantize_into(encoder, x, gain, eps, &xq)?;
    Ok(xq)
}

/// `gate_quantize` in `layout`.
pub fn gate_quantize_as(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    gate: Gate,
    norm: Norm<'_, Tensor<f32>>,
    layout: Layout,
) -> Result<QuantizedActivations> {
    let (tokens, columns) = x.shape().as_matrix();
    let xq = QuantizedActivations::uninit(encoder.context(), tokens, columns / 2, layout)?;
    bitnet::gate_quantize_into(encoder, x, gate, norm, &xq)?;
    Ok(xq)
}
