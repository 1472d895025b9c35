//! Absmean quantisation of a whole tensor: s = 1 / max(mean|W|, 1e-5), Wq = clamp(round(W·s), -1,
//! 1), β = 1 / s.
//!
//! Of a stack of matrices each may have a scale of its own. The mean needs two dispatches, since a
//! barrier orders one workgroup only: sums of chunks, then the codes. Both add in a fixed order, so
//! the codes are the same on every device.

use super::group_quantizer::{
    check_matrix, check_no_groups, check_stack, stack_of, write_empty_ternary,
};
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
    shape::Shape,
    weights::ternary::{matrix::TernaryMatrix, packed::PackedTernary, scales::Scales},
    wgsl,
};
use rayon::prelude::*;

params! { struct SumParams { length: u32, chunks: u32, matrices: u32 } }
params! { struct Params { rows: u32, columns: u32, words: u32, sums: u32, matrices: u32, count: f32 } }

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
    &[
        read("w", Float("X")),
        read("sums", F32),
        read_write("codes", U32),
        read_write("w_scale", F32),
    ],
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

/// Quantises `w` `[.., columns]` (`f32` or `f16`) with one scale for the tensor; all but the last
/// dimension are rows.
///
/// Weights must be finite: otherwise all codes are zero and the scale is NaN, which
/// [`TernaryMatrix::read`] refuses.
///
/// # Errors
/// What the device reports.
pub fn quantize_weights<T: Float>(encoder: &mut Encoder, w: &Tensor<T>) -> Result<TernaryMatrix> {
    let matrix = uninit(encoder, w.shape())?;
    quantize_weights_into(encoder, w, &matrix)?;
    Ok(matrix)
}

/// [`quantize_weights`] into a matrix of the caller.
///
/// # Errors
/// [`Error::Shape`] if it has another shape; [`Error::Invalid`] if its scales go by groups of
/// columns.
pub fn quantize_weights_into<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    matrix: &TernaryMatrix,
) -> Result<()> {
    let (rows, columns) = w.shape().as_matrix();
    record(encoder, "quantize_weights", w, [1, rows, columns], matrix)
}

/// Quantises a stack of matrices, `w` `[.., rows, columns]`, each with one scale and to the bits of
/// [`quantize_weights`] of it alone: the experts of a mixture, or heads. They become one matrix, a
/// row after another, that is multiplied at once.
///
/// Weights must be finite: otherwise the codes of their matrix are zero and its scale is NaN, which
/// [`TernaryMatrix::read`] refuses; the others do not notice.
///
/// # Errors
/// What the device reports.
pub fn quantize_weights_by_matrix<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
) -> Result<TernaryMatrix> {
    let matrix = uninit(encoder, w.shape())?;
    quantize_weights_by_matrix_into(encoder, w, &matrix)?;
    Ok(matrix)
}

/// [`quantize_weights_by_matrix`] into a matrix of the caller, which has the rows of all of them.
///
/// # Errors
/// As [`quantize_weights_into`].
pub fn quantize_weights_by_matrix_into<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    matrix: &TernaryMatrix,
) -> Result<()> {
    record(encoder, "quantize_weights_by_matrix", w, stack_of(w.shape()), matrix)
}

fn uninit(encoder: &Encoder, w: Shape) -> Result<TernaryMatrix> {
    let (rows, columns) = w.as_matrix();
    TernaryMatrix::uninit(encoder.context(), rows, columns, None)
}

/// Records a stack of `[matrices, rows, columns]`.
fn record<T: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    w: &Tensor<T>,
    [matrices, rows, columns]: [usize; 3],
    matrix: &TernaryMatrix,
) -> Result<()> {
    check_matrix(op, w.shape(), [matrix.rows(), matrix.columns()])?;
    check_no_groups(op, matrix.group())?;
    if w.is_empty() {
        return write_empty_ternary(
            encoder,
            &quantize_weights_cpu::<T>(&[], matrix.rows(), columns)?,
            matrix,
        );
    }
    let sums = sum_abs(encoder, w, matrices)?;
    let params = Params {
        rows: rows as u32,
        columns: columns as u32,
        words: matrix.row_words() as u32,
        sums: (sums.len() / matrices) as u32,
        matrices: matrices as u32,
        count: (rows * columns) as f32,
    };
    // Whole workgroups for each matrix.
    let threads = (rows * matrix.row_words()).next_multiple_of(THREADS);
    encoder.dispatch(
        &QUANTIZE_WEIGHTS,
        &params,
        &[w, &sums, &matrix.codes, &matrix.scales],
        [matrices * threads, 1, 1],
    )
}

/// The sums of |w| over chunks of each of so many matrices, which every workgroup of a kernel after
/// it adds up.
pub(super) fn sum_abs<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    matrices: usize,
) -> Result<Tensor<f32>> {
    let length = w.len() / matrices.max(1);
    let chunks = length.div_ceil(CHUNK);
    let sums = Tensor::uninit(encoder.context(), [matrices * chunks])?;
    let params =
        SumParams { length: length as u32, chunks: chunks as u32, matrices: matrices as u32 };
    encoder.dispatch(&SUM_ABS, &params, &[w, &sums], [sums.len() * CHUNK, 1, 1])?;
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
/// [`Error::Length`] if `w` is not `rows × columns`; [`Error::Invalid`] for weights that are not
/// finite.
pub fn quantize_weights_cpu<T: Float>(
    w: &[T],
    rows: usize,
    columns: usize,
) -> Result<PackedTernary> {
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

/// The CPU twin of [`quantize_weights_by_matrix`]: the same codes and scales, bit for bit. `w` is
/// `[matrices, rows, columns]`.
///
/// # Errors
/// [`Error::Length`] if it is not; [`Error::Invalid`] for weights that are not finite.
pub fn quantize_weights_by_matrix_cpu<T: Float>(
    w: &[T],
    [matrices, rows, columns]: [usize; 3],
) -> Result<PackedTernary> {
    check_stack("quantize_weights_by_matrix", w, [matrices, rows, columns])?;
    if w.is_empty() {
        return quantize_weights_cpu::<T>(&[], matrices.saturating_mul(rows), columns);
    }
    let parts: Result<Vec<_>> =
        w.chunks_exact(rows * columns).map(|w| quantize_weights_cpu(w, rows, columns)).collect();
    PackedTernary::concat(&parts?.iter().collect::<Vec<_>>())
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
