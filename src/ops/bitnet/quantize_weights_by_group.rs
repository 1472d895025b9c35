//! Absmean quantization with a scale for each row, or for each group of columns of a row: s = 1 /
//! max(mean|W|, 1e-5) over the group, Wq = clamp(round(W·s), -1, 1), β = 1 / s.

use super::partition::{Partition, THREADS, by_groups};
use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source},
    },
    msl, params,
    weights::ternary::matrix::TernaryMatrix,
    wgsl,
};

params! { struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_words: u32 } }

static QUANTIZE_WEIGHTS_BY_GROUP: Kernel = Kernel::trusted(
    "quantize_weights_by_group",
    Params::FIELDS,
    &[read("w", Float("X")), read_write("codes", U32), read_write("w_scale", F32)],
    &[
        by_groups(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                EXACT,
                "shared/finite",
                "shared/ternary",
                "shared/fixed_tree",
                "bitnet/quantize_weights_by_group"
            ]),
            4 * THREADS as u32,
        ),
        by_groups(
            Source::msl(msl![
                "shared/prelude",
                "shared/exact",
                "shared/finite",
                "shared/ternary",
                "shared/fixed_tree",
                "bitnet/quantize_weights_by_group"
            ]),
            4 * THREADS as u32,
        ),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&QUANTIZE_WEIGHTS_BY_GROUP];

/// Records the codes and scales of rows, or of groups of their columns.
pub(super) fn record<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    partition: &Partition,
    matrix: &TernaryMatrix,
) -> Result<()> {
    let ([rows, columns, groups, _], words) = (partition.counts(), matrix.row_words());
    let group_words = matrix.group().map_or(words, |size| size / 16) as u32;
    let params = Params { rows, columns, words: words as u32, groups, group_words };
    encoder.dispatch(
        &QUANTIZE_WEIGHTS_BY_GROUP,
        &params,
        &[w, &matrix.codes, &matrix.scales],
        partition.extent(),
    )
}
