//! BitLinear: `x` `[m, k]` quantised to int8 × ternary `w` `[n, k]` → `y` `[m, n]`.
//!
//! acc = Σ xq·Wq is an exact integer, whatever the kernel, and y = (acc · β) / a, the quotient correctly rounded: every implementation here
//! gives the same bits. A β that is stored in 16 bits leaves the product exact as long as acc has 16 bits, and then y is the float nearest to the
//! true value.

use super::{HostActivations, Layout, Method, QuantizedActivations, plan, quantize_activations, quantize_activations::check_features};
use crate::{
    Encoder, Error, Float, Kernel, PackedTernary, Result, Shape, Tensor, TernaryMatrix,
    kernel::{Binding, Params as _, Part, REDUCE, Source, Type::*, read, read_write},
    msl, params, ternary, wgsl,
};
use rayon::prelude::*;

params! { struct Params { rows: u32, tokens: u32, words: u32, add: u32 } }
params! { struct GroupedParams { rows: u32, tokens: u32, words: u32, groups: u32, group_words: u32, add: u32 } }

const BINDINGS: &[Binding] =
    &[read("codes", U32), read("w_scale", F32), read("x", U32), read("x_scale", F32), read("x_sum", I32), read_write("y", Float("Y"))];

const fn kernel(name: &'static str, entry: &'static str, wgsl: Source, msl: Option<Source>) -> Kernel {
    Kernel { name, entry, params: Params::FIELDS, bindings: BINDINGS, wgsl, msl }
}

/// A team of 32 lanes makes `rows` rows; teams of other sizes take turns at the tile.
const fn gemv(parts: &'static [Part], threads: u32, rows: u32, constants: &'static [(&'static str, u32)]) -> Source {
    Source { parts, workgroup_size: [threads, 1, 1], tile: [threads / 32 * rows, 1, 1], constants }
}

const fn gemm(parts: &'static [Part]) -> Source {
    Source { parts, workgroup_size: [256, 1, 1], tile: [64, 64, 1], constants: &[("STEP", 4)] }
}

const GEMV_INT8_PARTS: &[Part] = wgsl![REDUCE, "shared/exact", "bitnet/dot_int8", "bitnet/bitlinear_gemv"];

pub(super) static GEMV_INT8: Kernel =
    kernel("bitlinear_gemv_int8", "bitlinear_gemv", gemv(GEMV_INT8_PARTS, 256, 1, &[("ROWS", 1), ("TURNS", 4)]), None);

/// For matrices of so many rows that all of the GPU is busy anyway.
pub(super) static GEMV_INT8_TALL: Kernel =
    kernel("bitlinear_gemv_int8_tall", "bitlinear_gemv", gemv(GEMV_INT8_PARTS, 256, 4, &[("ROWS", 4), ("TURNS", 4)]), None);

pub(super) static GEMV_HALF: Kernel = kernel(
    "bitlinear_gemv_half",
    "bitlinear_gemv",
    gemv(wgsl![REDUCE, "shared/exact", "bitnet/dot_half", "bitnet/bitlinear_gemv"], 64, 8, &[("ROWS", 8), ("TURNS", 1)]),
    Some(gemv(msl!["shared/prelude", "shared/exact", "bitnet/dot_half", "bitnet/bitlinear_gemv"], 64, 8, &[("ROWS", 8)])),
);

/// For processors that play a GPU: a workgroup's threads all have rows, and are few workgroups.
pub(super) static GEMV_HALF_SOFTWARE: Kernel = kernel(
    "bitlinear_gemv_half_software",
    "bitlinear_gemv",
    gemv(wgsl![REDUCE, "shared/exact", "bitnet/dot_half", "bitnet/bitlinear_gemv"], 64, 32, &[("ROWS", 8), ("TURNS", 1)]),
    None,
);

pub(super) static GEMV_BIASED: Kernel = kernel(
    "bitlinear_gemv_biased",
    "bitlinear_gemv",
    gemv(wgsl![REDUCE, "shared/exact", "bitnet/dot_biased", "bitnet/bitlinear_gemv"], 64, 8, &[("ROWS", 8), ("TURNS", 1)]),
    Some(gemv(msl!["shared/prelude", "shared/exact", "bitnet/dot_biased", "bitnet/bitlinear_gemv"], 64, 8, &[("ROWS", 8)])),
);

pub(super) static GEMM_INT8: Kernel = kernel(
    "bitlinear_gemm_int8",
    "bitlinear_gemm",
    gemm(wgsl!["shared/ids", "shared/exact", "bitnet/tile_int8", "bitnet/bitlinear_gemm"]),
    None,
);

pub(super) static GEMM_HALF: Kernel = kernel(
    "bitlinear_gemm_half",
    "bitlinear_gemm",
    gemm(wgsl!["shared/ids", "shared/exact", "bitnet/tile_half", "bitnet/bitlinear_gemm"]),
    Some(Source {
        parts: msl!["shared/prelude", "shared/exact", "bitnet/bitlinear_gemm"],
        workgroup_size: [128, 1, 1],
        tile: [64, 64, 1],
        constants: &[],
    }),
);

pub(super) static GROUPED: Kernel = Kernel {
    name: "bitlinear_grouped",
    entry: "bitlinear_grouped",
    params: GroupedParams::FIELDS,
    bindings: &[read("codes", U32), read("w_scale", F32), read("x", U32), read("x_scale", F32), read_write("y", Float("Y"))],
    wgsl: Source {
        parts: wgsl![REDUCE, "shared/exact", "bitnet/dot_int8", "bitnet/bitlinear_grouped"],
        workgroup_size: [64, 1, 1],
        tile: [8, 1, 1],
        constants: &[],
    },
    msl: None,
};

/// `x` `[.., k]` (`f32` or `f16`) times `w` `[n, k]`: quantises `x` per row and multiplies; `y` `[.., n]` has the type of `x`.
///
/// # Errors
/// [`Error::Shape`] if the last dimension of `x` is not `w.columns()`; [`Error::Invalid`] for more than
/// [`MAX_FEATURES`](super::MAX_FEATURES) input features.
pub fn bitlinear<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, w: &TernaryMatrix) -> Result<Tensor<T>> {
    let (_, features) = x.shape().as_matrix();
    if features != w.columns() {
        return Err(Error::Shape { op: "bitlinear", what: "x", expected: format!("[.., {}]", w.columns()), found: x.shape() });
    }
    let xq = match w.group() {
        None => quantize_activations::quantize_activations(encoder, x)?,
        Some(_) => quantize_activations::quantize_activations_as(encoder, x, Layout::Int8)?,
    };
    // [m, n] under the leading dimensions of x.
    bitlinear_quantized(encoder, &xq, w)?.reshape(x.shape().with_last(w.rows()))
}

/// [`bitlinear`] of activations that are already quantised (several matrices can share them): `[m, n]` in `f32` or `f16`.
pub fn bitlinear_quantized<T: Float>(encoder: &mut Encoder, x: &QuantizedActivations, w: &TernaryMatrix) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), [x.tokens(), w.rows()])?;
    bitlinear_into(encoder, x, w, &y)?;
    Ok(y)
}

/// [`bitlinear_quantized`] into a tensor that the caller owns, `[m, n]`.
///
/// # Errors
/// [`Error::Shape`] if `x`, `w` and `y` do not fit; [`Error::Invalid`] if the sum would not be exact, or for a matrix that is scaled by groups
/// and activations not in [`Layout::Int8`].
pub fn bitlinear_into<T: Float>(encoder: &mut Encoder, x: &QuantizedActivations, w: &TernaryMatrix, y: &Tensor<T>) -> Result<()> {
    record(encoder, x, w, y, false)
}

/// Adds [`bitlinear_quantized`] to `y` `[m, n]`, the residual stream of a transformer. The sum is rounded once more or not, as the device
/// does it: the last bit is open.
///
/// # Errors
/// As [`bitlinear_into`].
pub fn bitlinear_add<T: Float>(encoder: &mut Encoder, x: &QuantizedActivations, w: &TernaryMatrix, y: &Tensor<T>) -> Result<()> {
    record(encoder, x, w, y, true)
}

fn record<T: Float>(encoder: &mut Encoder, x: &QuantizedActivations, w: &TernaryMatrix, y: &Tensor<T>, add: bool) -> Result<()> {
    let op = "bitlinear";
    let (m, n, k) = (x.tokens(), w.rows(), w.columns());
    if x.features() != k {
        return Err(Error::Shape { op, what: "x", expected: format!("[m, {k}]"), found: [m, x.features()].into() });
    }
    if y.shape().as_matrix() != (m, n) {
        return Err(Error::Shape { op, what: "y", expected: format!("[{m}, {n}]"), found: y.shape() });
    }
    check_features(op, k, x.layout, encoder)?;
    let method = plan::plan(m, n, x.layout, w.group().is_some(), encoder.context().capabilities());
    if method == Method::Grouped && x.layout != Layout::Int8 {
        let what = "a matrix scaled by groups needs activations in the Int8 layout".to_owned();
        return Err(Error::Invalid { op, what });
    }
    let (rows, tokens, words, add) = (n as u32, m as u32, w.row_words() as u32, add.into());
    let kernel = match method {
        Method::GemvInt8 => &GEMV_INT8,
        Method::GemvInt8Tall => &GEMV_INT8_TALL,
        Method::GemvHalf => &GEMV_HALF,
        Method::GemvHalfSoftware => &GEMV_HALF_SOFTWARE,
        Method::GemvBiased => &GEMV_BIASED,
        Method::GemmInt8 => &GEMM_INT8,
        Method::GemmHalf => &GEMM_HALF,
        Method::Grouped => {
            let size = w.group().unwrap_or(k);
            let (groups, group_words) = (ternary::groups(k, w.group()) as u32, (size / ternary::CODES_PER_WORD) as u32);
            let params = GroupedParams { rows, tokens, words, groups, group_words, add };
            return encoder.dispatch(&GROUPED, &params, &[&w.codes, &w.scales, &x.codes, &x.scales, y], [n, m, 1]);
        }
    };
    let params = Params { rows, tokens, words, add };
    encoder.dispatch(kernel, &params, &[&w.codes, &w.scales, &x.codes, &x.scales, &x.sums, y], [n, m, 1])
}

/// The integers Σ xq·Wq as floats, `[m, n]`: [`bitlinear_quantized`] with all scales 1. For checks; exact on every device.
pub fn accumulators(encoder: &mut Encoder, x: &QuantizedActivations, w: &TernaryMatrix) -> Result<Tensor<f32>> {
    let context = encoder.context();
    let ones = |shape: Shape| context.upload(&vec![1.0; shape.checked_len().unwrap_or(0)], shape);
    let x = x.with_scales(ones(x.scales.shape())?);
    let w = w.with_scales(ones(w.scales.shape())?);
    bitlinear_quantized(encoder, &x, &w)
}

/// The CPU twin of [`bitlinear`], on all cores: the same bits (but for matrices scaled by groups, where a float sum remains). `x` is
/// `[tokens, w.columns()]`, the result `[tokens, w.rows()]`.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows; [`Error::Invalid`] for more than [`MAX_FEATURES`](super::MAX_FEATURES) features.
pub fn bitlinear_cpu<T: Float>(x: &[T], tokens: usize, w: &PackedTernary) -> Result<Vec<T>> {
    let xq = quantize_activations::quantize_activations_cpu(x, tokens, w.columns())?;
    Ok(bitlinear_quantized_cpu(&xq, w)?.into_iter().map(T::from_f32).collect())
}

/// The CPU twin of [`bitlinear_quantized`].
pub fn bitlinear_quantized_cpu(x: &HostActivations, w: &PackedTernary) -> Result<Vec<f32>> {
    let scales = w.row_scales();
    let groups = ternary::groups(w.columns(), w.group());
    by_rows(x, w, |row, token, sum| match w.group() {
        None => sum(0) as f32 * scales[row] / x.scales[token],
        Some(_) => (0..groups).map(|g| sum(g) as f32 * scales[row * groups + g]).sum::<f32>() / x.scales[token],
    })
}

/// The CPU twin of [`accumulators`], `[tokens, rows]`.
pub fn accumulators_cpu(x: &HostActivations, w: &PackedTernary) -> Result<Vec<i32>> {
    let groups = ternary::groups(w.columns(), w.group());
    by_rows(x, w, |_, _, sum| (0..groups).map(sum).sum())
}

/// Calls `output(row, token, sum)` for every output, rows in parallel, where `sum(g)` is Σ xq·Wq over the g-th group of columns; gives
/// `[tokens, rows]`.
fn by_rows<R: Copy + Default + Send>(
    x: &HostActivations,
    w: &PackedTernary,
    output: impl Fn(usize, usize, &dyn Fn(usize) -> i32) -> R + Sync,
) -> Result<Vec<R>> {
    let (m, n, k) = (x.tokens, w.rows(), w.columns());
    if x.features != k {
        return Err(Error::Shape { op: "bitlinear", what: "x", expected: format!("[m, {k}]"), found: [m, x.features].into() });
    }
    if m.checked_mul(k) != Some(x.codes.len()) || x.scales.len() != m {
        return Err(Error::Length { shape: [m, k].into(), found: x.codes.len() });
    }
    if k > super::MAX_FEATURES {
        let what = format!("{k} input features; integer sums are exact in f32 up to {}", super::MAX_FEATURES);
        return Err(Error::Invalid { op: "bitlinear", what });
    }
    // Four codes a byte.
    let group_bytes = w.group().map_or(w.row_words() * 4, |size| size / 4).max(1);
    let tokens: Vec<_> = (0..m).map(|token| Fields::of(x.row(token), w.row_words(), group_bytes)).collect();
    // Rows are the parallel dimension, so a row's outputs are made together and transposed at the end.
    let mut by_row = vec![R::default(); n * m];
    by_row.par_chunks_mut(m.max(1)).enumerate().for_each(|(row, outputs)| {
        let bytes: &[u8] = bytemuck::cast_slice(w.row(row));
        for (token, out) in outputs.iter_mut().enumerate() {
            *out = output(row, token, &|group| tokens[token].sum(bytes, group, group_bytes));
        }
    });
    if m == 1 {
        return Ok(by_row);
    }
    Ok((0..m * n).map(|at| by_row[at % n * m + at / n]).collect())
}

/// A token's activations by the field of a byte of codes that they meet, and their sums over groups of columns.
struct Fields {
    fields: [Vec<i16>; 4],
    group_sums: Vec<i32>,
}

impl Fields {
    fn of(codes: &[i8], words: usize, group_bytes: usize) -> Self {
        let mut fields = [(); 4].map(|()| vec![0; 4 * words]);
        for (k, &code) in codes.iter().enumerate() {
            let (word, e) = (k / ternary::CODES_PER_WORD, k % ternary::CODES_PER_WORD);
            fields[e / 4][4 * word + e % 4] = i16::from(code);
        }
        let group_sums = codes.chunks(4 * group_bytes).map(|group| group.iter().map(|&code| i32::from(code)).sum()).collect();
        Self { fields, group_sums }
    }

    /// Σ x·(code - 1) over a group: the sum with raw codes, less the sum of the activations.
    fn sum(&self, bytes: &[u8], group: usize, group_bytes: usize) -> i32 {
        let range = (group * group_bytes).min(bytes.len())..((group + 1) * group_bytes).min(bytes.len());
        let fields = self.fields.each_ref().map(|field| &field[range.clone()]);
        dot(&bytes[range], fields) - self.group_sums.get(group).copied().unwrap_or(0)
    }
}

/// Compiled for several instruction sets; in a form that compilers turn into 16-bit multiply-adds.
#[multiversion::multiversion(targets = "simd")]
fn dot(bytes: &[u8], [a, b, c, d]: [&[i16]; 4]) -> i32 {
    let product = |code: u8, x: i16| i32::from(i16::from(code & 3)) * i32::from(x);
    let mut sum = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        sum += product(byte, a[i]) + product(byte >> 2, b[i]) + product(byte >> 4, c[i]) + product(byte >> 6, d[i]);
    }
    sum
}
