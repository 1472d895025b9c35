//! Absmean quantization of whole matrices: s = 1 / max(mean|W|, 1e-5), Wq = clamp(round(W·s), -1,
//! 1), β = 1 / s.
//!
//! The mean needs two dispatches, since a barrier orders one workgroup only: sums of chunks, then
//! the codes. Both add in a fixed order, so the codes are the same on every device.

use super::partition::{Partition, THREADS as GROUP_THREADS};
use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source, Work},
    },
    msl, params,
    weights::ternary::matrix::TernaryMatrix,
    wgsl,
};
use rayon::prelude::*;

params! { pub(super) struct SumParams { length: u32, chunks: u32, matrices: u32 } }
params! { struct Params { rows: u32, columns: u32, words: u32, sums: u32, matrices: u32, count: f32 } }

pub(super) const THREADS: usize = 256;
/// Elements that one workgroup adds up.
pub(super) const CHUNK: usize = THREADS * THREADS;

/// Sets the workgroup of a kernel that adds up chunks.
pub(super) const fn by_chunks(source: Source) -> Source {
    source.workgroup_size([THREADS as u32, 1, 1]).workgroup_bytes(4 * THREADS as u32).tile([
        CHUNK as u32,
        1,
        1,
    ])
}

static SUM_ABS: Kernel = Kernel::trusted(
    "sum_abs",
    SumParams::FIELDS,
    &[read("w", Float("X")), read_write("sums", F32)],
    &[
        by_chunks(Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/fixed_tree",
            "bitnet/sum_abs"
        ])),
        by_chunks(Source::msl(msl!["shared/prelude", "shared/fixed_tree", "bitnet/sum_abs"])),
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

/// Records the codes and scales of matrices with a scale each.
pub(super) fn record<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    &Partition { matrices, rows, columns, .. }: &Partition,
    matrix: &TernaryMatrix,
) -> Result<()> {
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

/// Records the sums of |w| over chunks of each matrix, `[matrices, chunks]`. Every workgroup of the
/// kernel after it adds them up.
pub(super) fn sum_abs<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    matrices: usize,
) -> Result<Tensor<f32>> {
    sum_chunks(encoder, &SUM_ABS, w, matrices, 1)
}

/// Records `kernel`, which makes `sums` of each chunk of each matrix.
pub(super) fn sum_chunks<T: Float>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    w: &Tensor<T>,
    matrices: usize,
    sums: usize,
) -> Result<Tensor<f32>> {
    let length = w.len() / matrices.max(1);
    let chunks = length.div_ceil(CHUNK);
    let made = Tensor::uninit(encoder.context(), [matrices, chunks, sums])?;
    let params =
        SumParams { length: length as u32, chunks: chunks as u32, matrices: matrices as u32 };
    encoder.dispatch(kernel, &params, &[w, &made], [matrices * chunks * CHUNK, 1, 1])?;
    Ok(made)
}

/// Returns mean|w|, added in the order of the kernels; 0 of no weights.
pub(super) fn absmean<T: Float>(w: &[T], whole: bool) -> f32 {
    mean::<THREADS, T>(w, whole, f32::abs)
}

/// Returns the mean of `f` of weights: of a whole matrix by sums of chunks, which `LANES` add up,
/// else as a workgroup adds up a group. 0 of no weights.
pub(super) fn mean<const LANES: usize, T: Float>(w: &[T], whole: bool, f: fn(f32) -> f32) -> f32 {
    let chunk = |w: &[T]| strided_sum::<THREADS>(w.iter().map(|&v| f(v.into())));
    let sum = if whole {
        let sums: Vec<f32> = w.par_chunks(CHUNK).map(chunk).collect();
        strided_sum::<LANES>(sums.into_iter())
    } else {
        strided_sum::<GROUP_THREADS>(w.iter().map(|&v| f(v.into())))
    };
    sum / w.len().max(1) as f32
}

/// Returns the sum of a workgroup: every thread its stride, then a tree.
fn strided_sum<const LANES: usize>(values: impl Iterator<Item = f32>) -> f32 {
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
