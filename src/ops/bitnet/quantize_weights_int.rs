//! Uniform quantization to 2, 4 or 8 bits per group of columns, rounded to the nearest step: code =
//! round(W / scale) + zero.
//!
//! Asymmetric (Jacob et al. 2018, arXiv:1712.05877): steps from min W to max W, both taken to be no
//! more and no less than 0, so that 0 is one of them: scale = (max - min) / (2^b - 1), zero =
//! round(-min / scale). Symmetric (absmax): zero = 2^(b-1) and scale = max|W| / (2^(b-1) - 1).

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
    weights::{
        int::{bits::Bits, matrix::IntMatrix},
        ternary::scales::SMALLEST_SCALE,
    },
    wgsl,
};

params! {
    struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32, bits: u32, symmetric: u32 }
}

static QUANTIZE_WEIGHTS_INT: Kernel = Kernel::trusted(
    "quantize_weights_int",
    Params::FIELDS,
    &[
        read("w", Float("X")),
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
                "shared/lanes",
                "bitnet/quantize_weights_int"
            ]),
            8 * THREADS as u32,
        ),
        by_groups(
            Source::msl(msl![
                "shared/prelude",
                "shared/exact",
                "shared/finite",
                "shared/reduce",
                "bitnet/quantize_weights_int"
            ]),
            128,
        ),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&QUANTIZE_WEIGHTS_INT];

/// Records the codes, scales and zero points of a partition.
pub(super) fn record<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    partition: &Partition,
    asymmetric: bool,
    matrix: &IntMatrix,
) -> Result<()> {
    let [rows, columns, groups, group_size] = partition.counts();
    let params = Params {
        rows,
        columns,
        words: matrix.row_words() as u32,
        groups,
        group_size,
        bits: matrix.bits().count() as u32,
        symmetric: (!asymmetric).into(),
    };
    encoder.dispatch(
        &QUANTIZE_WEIGHTS_INT,
        &params,
        &[w, &matrix.codes, &matrix.scales, &matrix.zeros],
        partition.extent(),
    )
}

/// The steps of a group.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub scale: f32,
    pub zero: f32,
    /// 1 / scale, or 0 where all codes are 0.
    per_unit: f32,
    max_code: f32,
}

impl Steps {
    pub fn of<T: Float>(w: &[T], bits: Bits, asymmetric: bool) -> Self {
        let largest = |sign: f32| w.iter().fold(0f32, |most, &v| most.max(sign * v.into()));
        let (above, below) = (largest(1.0), largest(-1.0));
        let (max_code, half) = (f32::from(bits.max_code()), f32::from(bits.max_code() / 2));
        let scale = if asymmetric { (above + below) / max_code } else { above.max(below) / half };
        if scale < SMALLEST_SCALE {
            return Self { scale: 0.0, zero: 0.0, per_unit: 0.0, max_code };
        }
        let per_unit = 1.0 / scale;
        let zero = if asymmetric {
            (below * per_unit).round_ties_even().min(max_code)
        } else {
            half + 1.0
        };
        Self { scale, zero, per_unit, max_code }
    }

    pub fn code(self, v: f32) -> u8 {
        ((v * self.per_unit).round_ties_even() + self.zero).clamp(0.0, self.max_code) as u8
    }
}
