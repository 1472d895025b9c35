//! RMSNorm and the activation quantiser in one dispatch: n = x / sqrt(mean(x²) + eps) · gain, then as
//! [`quantize_activations`](super::quantize_activations).

use super::{HostActivations, Layout, QuantizedActivations, plan, quantize_activations};
use crate::ops::rms::inverse_rms;
use crate::{
    Encoder, Error, Float, Kernel, Result, Tensor,
    kernel::{Binding, Params as _, Part, REDUCE, Source, Type::*, read, read_write},
    msl, params, wgsl,
};

params! { struct Params { tokens: u32, features: u32, words: u32, eps: f32 } }

const BINDINGS: &[Binding] =
    &[read("source", Float("X")), read("gain", F32), read_write("x", U32), read_write("x_scale", F32), read_write("x_sum", I32)];

const fn kernel(name: &'static str, wgsl: &'static [Part], msl: &'static [Part]) -> Kernel {
    Kernel {
        name,
        entry: "rms_norm_quantize",
        params: Params::FIELDS,
        bindings: BINDINGS,
        wgsl: Source { parts: wgsl, workgroup_size: [256, 1, 1], tile: [1, 1, 1], constants: &[] },
        msl: Some(Source { parts: msl, workgroup_size: [256, 1, 1], tile: [1, 1, 1], constants: &[] }),
    }
}

pub(super) static INT8: Kernel = kernel(
    "rms_norm_quantize_int8",
    wgsl![REDUCE, "shared/exact", "shared/rms", "shared/flat", "bitnet/layout_int8", "bitnet/quantize_row", "bitnet/rms_norm_quantize"],
    msl![
        "shared/prelude",
        "shared/exact",
        "shared/reduce",
        "shared/rms",
        "bitnet/layout_int8",
        "bitnet/quantize_row",
        "bitnet/rms_norm_quantize"
    ],
);

pub(super) static HALF: Kernel = kernel(
    "rms_norm_quantize_half",
    wgsl![
        REDUCE,
        "shared/exact",
        "shared/rms",
        "shared/flat",
        "bitnet/half_planes",
        "bitnet/layout_half",
        "bitnet/quantize_row",
        "bitnet/rms_norm_quantize"
    ],
    msl![
        "shared/prelude",
        "shared/exact",
        "shared/reduce",
        "shared/rms",
        "bitnet/layout_half",
        "bitnet/quantize_row",
        "bitnet/rms_norm_quantize"
    ],
);

/// Normalises every row of `x` `[.., k]` with `gain` `[k]` and quantises it, in the layout that suits this device and k.
///
/// Squares are summed as integers (wgsl/shared/rms.wgsl), so codes and scales are the same bits on every device.
///
/// # Errors
/// [`Error::Shape`] if `gain` is not `[k]`; else as [`quantize_activations`](super::quantize_activations).
pub fn rms_norm_quantize<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, gain: &Tensor<f32>, eps: f32) -> Result<QuantizedActivations> {
    let context = encoder.context();
    let layout = plan::layout(x.shape().as_matrix().1, context.capabilities(), context.language());
    rms_norm_quantize_as(encoder, x, gain, eps, layout)
}

/// [`rms_norm_quantize`] in a layout of the caller's choice.
pub fn rms_norm_quantize_as<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
    layout: Layout,
) -> Result<QuantizedActivations> {
    let (tokens, features) = x.shape().as_matrix();
    quantize_activations::check_features("rms_norm_quantize", features, layout, encoder)?;
    let xq = QuantizedActivations::uninit(encoder.context(), tokens, features, layout)?;
    rms_norm_quantize_into(encoder, x, gain, eps, &xq)?;
    Ok(xq)
}

/// [`rms_norm_quantize`] into activations that the caller owns, in their layout.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn rms_norm_quantize_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
    xq: &QuantizedActivations,
) -> Result<()> {
    let op = "rms_norm_quantize";
    let (tokens, features) = x.shape().as_matrix();
    if gain.shape().dims() != [features] {
        return Err(Error::Shape { op, what: "gain", expected: format!("[{features}]"), found: gain.shape() });
    }
    xq.check(op, tokens, features, encoder)?;
    let words = crate::ternary::row_words(features) as u32;
    let params = Params { tokens: tokens as u32, features: features as u32, words, eps };
    let kernel = if xq.layout == Layout::Int8 { &INT8 } else { &HALF };
    encoder.dispatch(kernel, &params, &[x, gain, &xq.codes, &xq.scales, &xq.sums], [tokens, 1, 1])
}

/// The CPU twin. `x` is `[tokens, gain.len()]`.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn rms_norm_quantize_cpu<T: Float>(x: &[T], tokens: usize, gain: &[f32], eps: f32) -> Result<HostActivations> {
    let features = gain.len();
    if tokens.checked_mul(features) != Some(x.len()) {
        return Err(Error::Length { shape: [tokens, features].into(), found: x.len() });
    }
    let mut quantized = HostActivations { tokens, features, codes: Vec::with_capacity(x.len()), scales: Vec::with_capacity(tokens) };
    for token in 0..tokens {
        let row = x[token * features..][..features].iter().map(|&v| -> f32 { v.into() });
        let inverse = inverse_rms(row.clone(), eps);
        quantize_activations::quantize_row(row.zip(gain).map(|(v, g)| v * inverse * g), &mut quantized);
    }
    Ok(quantized)
}
