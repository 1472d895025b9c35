//! `[m, k]` floats → int8 codes: a = 127 / max(max|x|, 1e-5) over a row, xq = clamp(round(x·a), -128, 127), ties to even.

use super::{HostActivations, Layout, QuantizedActivations, plan};
use crate::{
    Encoder, Error, Float, Kernel, Result, Tensor,
    kernel::{Binding, Params as _, Part, REDUCE, Source, Type::*, read, read_write},
    msl, params, wgsl,
};

params! { struct Params { tokens: u32, features: u32, words: u32 } }

const BINDINGS: &[Binding] = &[read("source", Float("X")), read_write("x", U32), read_write("x_scale", F32), read_write("x_sum", I32)];

const fn kernel(name: &'static str, wgsl: &'static [Part], msl: &'static [Part]) -> Kernel {
    Kernel {
        name,
        entry: "quantize_activations",
        params: Params::FIELDS,
        bindings: BINDINGS,
        wgsl: Source { parts: wgsl, workgroup_size: [256, 1, 1], tile: [1, 1, 1], constants: &[] },
        msl: Some(Source { parts: msl, workgroup_size: [256, 1, 1], tile: [1, 1, 1], constants: &[] }),
    }
}

pub(super) static INT8: Kernel = kernel(
    "quantize_activations_int8",
    wgsl![REDUCE, "shared/exact", "shared/flat", "bitnet/layout_int8", "bitnet/quantize_row", "bitnet/quantize_activations"],
    msl!["shared/prelude", "shared/exact", "shared/reduce", "bitnet/layout_int8", "bitnet/quantize_row", "bitnet/quantize_activations"],
);

pub(super) static HALF: Kernel = kernel(
    "quantize_activations_half",
    wgsl![
        REDUCE,
        "shared/exact",
        "shared/flat",
        "bitnet/half_planes",
        "bitnet/layout_half",
        "bitnet/quantize_row",
        "bitnet/quantize_activations"
    ],
    msl!["shared/prelude", "shared/exact", "shared/reduce", "bitnet/layout_half", "bitnet/quantize_row", "bitnet/quantize_activations"],
);

/// Quantises every row of `x` `[.., k]` (`f32` or `f16`), in the layout that suits this device and k.
///
/// A row that holds a NaN or an infinity gets codes 0 and scale NaN: everything computed from it is NaN, other rows are untouched.
///
/// # Errors
/// [`Error::Invalid`] for more than [`MAX_FEATURES`](super::MAX_FEATURES) features; what [`Encoder::dispatch`] reports.
pub fn quantize_activations<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<QuantizedActivations> {
    let context = encoder.context();
    let layout = plan::layout(x.shape().as_matrix().1, context.capabilities(), context.language());
    quantize_activations_as(encoder, x, layout)
}

/// [`quantize_activations`] in a layout of the caller's choice.
pub fn quantize_activations_as<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, layout: Layout) -> Result<QuantizedActivations> {
    let (tokens, features) = x.shape().as_matrix();
    check_features("quantize_activations", features, layout, encoder)?;
    let xq = QuantizedActivations::uninit(encoder.context(), tokens, features, layout)?;
    quantize_activations_into(encoder, x, &xq)?;
    Ok(xq)
}

/// [`quantize_activations`] into activations that the caller owns, in their layout.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn quantize_activations_into<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, xq: &QuantizedActivations) -> Result<()> {
    let (tokens, features) = x.shape().as_matrix();
    xq.check("quantize_activations", tokens, features, encoder)?;
    let params = Params { tokens: tokens as u32, features: features as u32, words: crate::ternary::row_words(features) as u32 };
    let kernel = if xq.layout == Layout::Int8 { &INT8 } else { &HALF };
    encoder.dispatch(kernel, &params, &[x, &xq.codes, &xq.scales, &xq.sums], [tokens, 1, 1])
}

/// Refuses what the integer sums could not hold exactly.
pub(super) fn check_features(op: &'static str, features: usize, layout: Layout, encoder: &Encoder) -> Result<()> {
    let limit = layout.max_features(encoder.context().capabilities().half_subnormals);
    if features <= limit {
        return Ok(());
    }
    let what = format!("{features} input features in the {layout:?} layout; integer sums are exact in f32 up to {limit}");
    Err(Error::Invalid { op, what })
}

/// The CPU twin: the same codes and scales, bit for bit. `x` is `[tokens, features]`.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn quantize_activations_cpu<T: Float>(x: &[T], tokens: usize, features: usize) -> Result<HostActivations> {
    if tokens.checked_mul(features) != Some(x.len()) {
        return Err(Error::Length { shape: [tokens, features].into(), found: x.len() });
    }
    let mut quantized = HostActivations { tokens, features, codes: Vec::with_capacity(x.len()), scales: Vec::with_capacity(tokens) };
    for token in 0..tokens {
        let row = x[token * features..][..features].iter().map(|&v| v.into());
        quantize_row(row, &mut quantized);
    }
    Ok(quantized)
}

const TWO_TO_126: f32 = f32::from_bits((126 + 127) << 23);

/// Quantises one row and appends it.
pub(super) fn quantize_row(row: impl Iterator<Item = f32> + Clone, out: &mut HostActivations) {
    // Bits of floats >= 0 order like integers, with NaN above infinity; `f32::max` would lose a NaN.
    let max = f32::from_bits(row.clone().map(|v| v.abs().to_bits()).max().unwrap_or(0));
    if !max.is_finite() {
        out.codes.extend(row.map(|_| 0));
        out.scales.push(f32::NAN);
        return;
    }
    // As PyTorch computes 127 / t: the reciprocal first. Reciprocals of numbers from 2^126 on would be subnormal, which GPUs may flush.
    let largest = max.max(1e-5);
    let shrink = if largest >= TWO_TO_126 { 1.0 / 4_294_967_296.0 } else { 1.0 };
    let scale = 1.0 / (largest * shrink) * 127.0 * shrink;
    out.codes.extend(row.map(|v| (v * scale).round_ties_even().clamp(-128.0, 127.0) as i8));
    out.scales.push(scale);
}
