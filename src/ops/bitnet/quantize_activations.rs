//! `[m, k]` floats → int8 codes: a = 127 / max(max|x|, 1e-5) over a row, xq = clamp(round(x·a),
//! -128, 127), ties to even.

use super::{
    activations::QuantizedActivations,
    host_activations::HostActivations,
    row_quantizer::{RowQuantizer, row_quantizer},
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        source::Work,
    },
    ops::rms::largest_bits,
    params,
    weights::ternary::layout::row_words,
};
use rayon::prelude::*;

params! { struct Params { tokens: u32, features: u32, words: u32 } }

const BINDINGS: &[Binding] = &[
    read("source", Float("X")),
    read_write("x", U32),
    read_write("x_scale", F32),
    read_write("x_sum", I32),
];

static QUANTIZER: RowQuantizer = row_quantizer!(
    "quantize_activations", "quantize_activations" in "bitnet/quantize_activations", Params, BINDINGS, 3, Work::new(4, "elements", 20, 8),
    wgsl [], any ["bitnet/source_any", "shared/row_numbers"], whole ["bitnet/source_whole"], msl []
);

pub(super) const KERNELS: &[&Kernel] = &QUANTIZER.kernels();

/// Records the quantizer into activations of the caller.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub(crate) fn quantize_activations_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    xq: &QuantizedActivations,
) -> Result<()> {
    let (tokens, features) = x.shape().as_matrix();
    xq.check("quantize_activations", tokens, features, encoder)?;
    let params = Params {
        tokens: tokens as u32,
        features: features as u32,
        words: row_words(features) as u32,
    };
    let kernel = QUANTIZER.choose(xq.layout(), tokens, features, encoder);
    encoder.dispatch(kernel, &params, &[x, &xq.codes, &xq.scales, &xq.sums], [tokens, 1, 1])
}

const TWO_TO_126: f32 = f32::from_bits((126 + 127) << 23);

/// The largest magnitude of a row, 0 of an empty one; NaN if there is one.
pub(super) fn largest_magnitude(row: impl Iterator<Item = f32>) -> f32 {
    // Bits of floats >= 0 order like integers, with NaN above infinity; `f32::max` would lose a
    // NaN.
    f32::from_bits(row.map(|v| v.abs().to_bits()).max().unwrap_or(0))
}

/// levels / max(largest, 1e-5): the CPU reference of wgsl/bitnet/absmax_scale.wgsl. NaN where
/// `largest` is not finite.
pub(super) fn absmax_scale(largest: f32, levels: f32) -> f32 {
    if !largest.is_finite() {
        return f32::NAN;
    }
    // As PyTorch computes 127 / t: the reciprocal first. Reciprocals of numbers from 2^126 on would
    // be subnormal, which GPUs may flush.
    let t = largest.max(1e-5);
    let shrink = if t >= TWO_TO_126 { 1.0 / 4_294_967_296.0 } else { 1.0 };
    1.0 / (t * shrink) * levels * shrink
}

/// Quantizes the rows that `row(token)` gives, in parallel where it is worth it.
pub(super) fn quantize_rows(
    tokens: usize,
    features: usize,
    row: impl Fn(usize) -> Vec<f32> + Sync,
) -> HostActivations {
    const WORTH_THREADS: usize = 1 << 14;
    let (mut codes, mut scales) = (vec![0; tokens * features], vec![0.0; tokens]);
    let quantize = |token: usize, codes: &mut [i8], scale: &mut f32| {
        let row = row(token);
        *scale = absmax_scale(f32::from_bits(largest_bits(&row)), 127.0);
        // Of a row that is not finite, zeros.
        if !scale.is_nan() {
            round_codes(&row, *scale, codes);
        }
    };
    if codes.len() < WORTH_THREADS || features == 0 {
        (0..tokens).for_each(|token| {
            quantize(token, &mut codes[token * features..][..features], &mut scales[token])
        });
    } else {
        let rows = codes.par_chunks_exact_mut(features).zip(&mut scales);
        rows.enumerate().for_each(|(token, (codes, scale))| quantize(token, codes, scale));
    }
    HostActivations { tokens, features, codes, scales }
}

/// What the numbers of a row round to, half to even. (Of `as`, which saturates, compilers make no
/// vectors.)
#[multiversion::multiversion(targets = "simd")]
fn round_codes(row: &[f32], scale: f32, codes: &mut [i8]) {
    /// 3 · 2^22, whose last place is 1: a code that is added to it is rounded, and is what its last
    /// byte has.
    const UNITS: f32 = 12_582_912.0;
    let code = |v: f32| ((v * scale).clamp(-128.0, 127.0) + UNITS).to_bits() as i8;
    codes.iter_mut().zip(row).for_each(|(to, &v)| *to = code(v));
}

pub(crate) mod host {
    use super::*;

    /// CPU reference of [`ActivationQuantizer::int8`](crate::bitnet::ActivationQuantizer::int8):
    /// bit-identical. `x` is `[tokens, features]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn quantize_activations<T: Float>(
        x: &[T],
        tokens: usize,
        features: usize,
    ) -> Result<HostActivations> {
        if tokens.checked_mul(features) != Some(x.len()) {
            return Err(Error::Length { shape: [tokens, features].into(), found: x.len() });
        }
        Ok(quantize_rows(tokens, features, |token| {
            x[token * features..][..features].iter().map(|&v| v.into()).collect()
        }))
    }
}
