//! Binary quantization, BitNet's first (Wang et al. 2023, arXiv:2310.11453): the sign of W - mean
//! W, scaled by β = mean|W|. Codes are 1 for +β and 0 for -β: scale 2β, zero point ½.

use super::{
    partition::{Partition, THREADS, by_groups},
    quantize_weights::{SumParams, by_chunks, mean, sum_chunks},
};
use crate::{
    element::Float,
    error::Result,
    gpu::{
        encoder::Encoder,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source, Work},
    },
    msl, params,
    weights::{int::matrix::IntMatrix, ternary::scales::SMALLEST_SCALE},
    wgsl,
};

params! { struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32, matrix_rows: u32, chunks: u32, count: f32 } }

static WEIGHT_SUMS: Kernel = Kernel::trusted(
    "weight_sums",
    SumParams::FIELDS,
    &[read("w", Float("X")), read_write("sums", F32)],
    &[
        by_chunks(Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/fixed_tree",
            "bitnet/weight_sums"
        ]))
        .work(Work::new(1, "element", 4, 2)),
        by_chunks(Source::msl(msl!["shared/prelude", "shared/fixed_tree", "bitnet/weight_sums"])),
    ],
)
.flat();

static QUANTIZE_WEIGHTS_BINARY: Kernel = Kernel::trusted(
    "quantize_weights_binary",
    Params::FIELDS,
    &[
        read("w", Float("X")),
        read("sums", F32),
        read_write("codes", U32),
        read_write("w_scale", F32),
        read_write("w_zero", F32),
    ],
    &[
        by_groups(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                EXACT,
                "shared/finite",
                "shared/fixed_tree",
                "bitnet/quantize_weights_binary"
            ]),
            4 * THREADS as u32,
        ),
        by_groups(
            Source::msl(msl![
                "shared/prelude",
                "shared/exact",
                "shared/finite",
                "shared/fixed_tree",
                "bitnet/quantize_weights_binary"
            ]),
            4 * THREADS as u32,
        ),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&WEIGHT_SUMS, &QUANTIZE_WEIGHTS_BINARY];

/// Records the codes and scales of a partition: of whole matrices by sums that are taken before, of
/// groups at once.
pub(super) fn record<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    partition: &Partition,
    matrix: &IntMatrix,
) -> Result<()> {
    let (sums, chunks) = if partition.whole {
        let sums = sum_chunks(encoder, &WEIGHT_SUMS, w, partition.matrices, 2)?;
        let chunks = sums.len() / (2 * partition.matrices);
        (sums, chunks)
    } else {
        (Tensor::uninit(encoder.context(), [1])?, 0)
    };
    let [rows, columns, groups, group_size] = partition.counts();
    let params = Params {
        rows,
        columns,
        words: matrix.row_words() as u32,
        groups,
        group_size,
        matrix_rows: partition.rows as u32,
        chunks: chunks as u32,
        count: (partition.rows * partition.columns) as f32,
    };
    let bindings: [&dyn Bind; 5] = [w, &sums, &matrix.codes, &matrix.scales, &matrix.zeros];
    encoder.dispatch(&QUANTIZE_WEIGHTS_BINARY, &params, &bindings, partition.extent())
}

/// Returns the scale 2β of weights, and their mean, above which their code is 1.
pub(super) fn scale_and_mean<T: Float>(w: &[T], whole: bool) -> (f32, f32) {
    let scale = 2.0 * mean::<THREADS, T>(w, whole, f32::abs);
    let scale = if scale < SMALLEST_SCALE { 0.0 } else { scale };
    (scale, mean::<THREADS, T>(w, whole, |v| v))
}
