//! Absmean quantisation of a whole tensor: s = 1 / max(mean|W|, 1e-5), Wq = clamp(round(W·s), -1, 1), β = 1 / s.
//!
//! The mean needs two dispatches, since a barrier orders one workgroup only: sums of chunks, then the codes. Both add in a fixed order, so
//! the codes are the same on every device.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source, Work},
    },
    msl, params,
    weights::ternary::{matrix::TernaryMatrix, packed::PackedTernary, scales::Scales},
    wgsl,
};
use rayon::prelude::*;

params! { struct SumParams { length: u32 } }
params! { struct Params { rows: u32, columns: u32, words: u32, sums: u32, count: f32 } }

const THREADS: usize = 256;
/// Elements that one workgroup of `sum_abs` adds up.
const CHUNK: usize = THREADS * THREADS;

static SUM_ABS: Kernel = Kernel::trusted(
    "sum_abs",
    SumParams::FIELDS,
    &[read("w", Float("X")), read_write("sums", F32)],
    &[
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "shared/fixed_tree", "bitnet/sum_abs"])
            .workgroup_size([THREADS as u32, 1, 1])
            .workgroup_bytes(4 * THREADS as u32)
            .tile([CHUNK as u32, 1, 1]),
        Source::msl(msl!["shared/prelude", "shared/fixed_tree", "bitnet/sum_abs"])
            .workgroup_size([THREADS as u32, 1, 1])
            .workgroup_bytes(4 * THREADS as u32)
            .tile([CHUNK as u32, 1, 1]),
    ],
)
.flat();

static QUANTIZE_WEIGHTS: Kernel = Kernel::trusted(
    "quantize_weights",
    Params::FIELDS,
    &[read("w", Float("X")), read("sums", F32), read_write("codes", U32), read_write("w_scale", F32)],
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            EXACT,
            "shared/finite",
            "shared/ternary",
            "shared/fixed_tree",
            "bitnet/quantize_weights"
        ])
        .workgroup_size([THREADS as u32, 1, 1])
        .workgroup_bytes(4 * THREADS as u32)
        .work(Work::new(1, "element", 4, 2)),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "shared/finite",
            "shared/ternary",
            "shared/fixed_tree",
            "bitnet/quantize_weights"
        ])
        .workgroup_size([THREADS as u32, 1, 1])
        .workgroup_bytes(4 * THREADS as u32),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&SUM_ABS, &QUANTIZE_WEIGHTS];

/// Quantises `w` `[rows, columns]` (`f32` or `f16`) with one scale for the tensor.
///
/// Weights must be finite: otherwise all codes are zero and the scale is NaN, which [`TernaryMatrix::read`] refuses.
pub fn quantize_weights<T: Float>(encoder: &mut Encoder, w: &Tensor<T>) -> Result<TernaryMatrix> {
    let (rows, columns) = w.shape().as_matrix();
    if w.is_empty() {
        // Nothing to dispatch, but its scales must be something.
        return quantize_weights_cpu::<T>(&[], rows, columns)?.upload(encoder.context());
    }
    let matrix = TernaryMatrix::uninit(encoder.context(), rows, columns, None)?;
    quantize_weights_into(encoder, w, &matrix)?;
    Ok(matrix)
}

/// [`quantize_weights`] into a matrix of the caller.
///
/// # Errors
/// [`Error::Shape`] if it has another shape; [`Error::Invalid`] if its scales go by groups of columns.
pub fn quantize_weights_into<T: Float>(encoder: &mut Encoder, w: &Tensor<T>, matrix: &TernaryMatrix) -> Result<()> {
    let op = "quantize_weights";
    let (rows, columns) = w.shape().as_matrix();
    if (matrix.rows(), matrix.columns()) != (rows, columns) {
        let found = [matrix.rows(), matrix.columns()].into();
        return Err(Error::Shape { op, what: "the output", expected: format!("[{rows}, {columns}]"), found });
    }
    if matrix.group().is_some() {
        return Err(Error::Invalid { op, what: "the output has scales by groups of columns; one for the tensor is made".to_owned() });
    }
    let sums = sum_abs(encoder, w)?;
    let params = Params {
        rows: rows as u32,
        columns: columns as u32,
        words: matrix.row_words() as u32,
        sums: sums.len() as u32,
        count: w.len() as f32,
    };
    encoder.dispatch(&QUANTIZE_WEIGHTS, &params, &[w, &sums, &matrix.codes, &matrix.scales], [rows * matrix.row_words(), 1, 1])
}

/// The sums of |w| over chunks, which every workgroup of a kernel after it adds up.
pub(super) fn sum_abs<T: Float>(encoder: &mut Encoder, w: &Tensor<T>) -> Result<Tensor<f32>> {
    let sums = Tensor::uninit(encoder.context(), [w.len().div_ceil(CHUNK)])?;
    encoder.dispatch(&SUM_ABS, &SumParams { length: w.len() as u32 }, &[w, &sums], [w.len(), 1, 1])?;
    Ok(sums)
}

/// mean|w|, added in the order of the kernels; 0 of no weights.
pub(super) fn absmean_cpu<T: Float>(w: &[T]) -> f32 {
    let chunk = |chunk: &[T]| strided_sum::<THREADS>(chunk.iter().map(|&v| v.into().abs()));
    let sums: Vec<f32> = w.par_chunks(CHUNK).map(chunk).collect();
    if w.is_empty() { 0.0 } else { strided_sum::<THREADS>(sums.into_iter()) / w.len() as f32 }
}

/// The CPU twin: the same codes and scale, bit for bit. `w` is `[rows, columns]`.
///
/// # Errors
/// [`Error::Length`] if `w` is not `rows × columns`; [`Error::Invalid`] for weights that are not finite.
pub fn quantize_weights_cpu<T: Float>(w: &[T], rows: usize, columns: usize) -> Result<PackedTernary> {
    if rows.checked_mul(columns) != Some(w.len()) {
        return Err(Error::Length { shape: [rows, columns].into(), found: w.len() });
    }
    let mean = absmean_cpu(w);
    if !mean.is_finite() {
        return Err(Error::Invalid {
            op: "quantize_weights",
            what: format!("weights must be finite; the mean of their magnitudes is {mean}"),
        });
    }
    let s = 1.0 / mean.max(1e-5);
    let code = |row: usize, column: usize| {
        let value: f32 = w[row * columns + column].into();
        ((value * s).round_ties_even().clamp(-1.0, 1.0) as i32 + 1) as u32
    };
    PackedTernary::from_codes(rows, columns, Scales::Tensor(1.0 / s), code)
}

/// A workgroup's sum: every thread its stride, then a tree.
pub fn strided_sum<const LANES: usize>(values: impl Iterator<Item = f32>) -> f32 {
    let mut lanes = [0f32; LANES];
    values.enumerate().for_each(|(i, value)| lanes[i % LANES] += value);
    let mut stride = LANES / 2;
    while stride > 0 {
        for i in 0..stride {
            lanes[i] += lanes[i + stride];
        }
        stride /= 2;
    }
    lanes[0]
}
