//! Uniform quantisation to 2, 4 or 8 bits by groups of columns, rounded to the nearest step: code =
//! round(W / scale) + zero.
//!
//! Asymmetric (Jacob et al. 2018, arXiv:1712.05877): steps from min W to max W, both taken to be no
//! more and no less than 0, so that 0 is one of them: scale = (max - min) / (2^b - 1), zero =
//! round(-min / scale). Symmetric (absmax): zero = 2^(b-1) and scale = max|W| / (2^(b-1) - 1).

use super::group_quantizer::{Groups, THREADS, by_groups, check_weights, write_empty};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source},
    },
    msl, params,
    weights::{
        int::{
            affine::{Affine, check_group},
            bits::Bits,
            matrix::IntMatrix,
            packed::PackedInt,
        },
        ternary::scales::SMALLEST_SCALE,
    },
    wgsl,
};
use rayon::prelude::*;

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

/// Where the zero point of a group lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Where it makes most of the codes: steps go from the smallest weight to the largest.
    Asymmetric,
    /// In the middle, at 2^(bits-1): steps go from -max|W| to max|W|. Code 0 is not used.
    Symmetric,
}

/// Quantises `w` `[.., columns]` (`f32` or `f16`) to 2, 4 or 8 bits, with a scale and a zero point
/// for every `size` neighbouring columns of a row, or with `None` for each row; all but the last
/// dimension are rows, and the last group of a row may be short. Codes are rounded to the nearest
/// step, ties to even, and 0 is exact. A group whose scale would be below 2^-80 counts as zeros.
///
/// Weights must be finite: otherwise the codes of the group are 0 and its scale NaN, which
/// [`IntMatrix::read`] refuses.
///
/// # Errors
/// [`Error::Invalid`] if the size is no multiple of 32, or for one bit, which
/// [`quantize_weights_binary`](super::quantize_weights_binary) makes.
pub fn quantize_weights_int<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    bits: Bits,
    size: Option<usize>,
    scheme: Scheme,
) -> Result<IntMatrix> {
    let (rows, columns) = w.shape().as_matrix();
    let matrix = IntMatrix::uninit(encoder.context(), rows, columns, bits, size)?;
    quantize_weights_int_into(encoder, w, scheme, &matrix)?;
    Ok(matrix)
}

/// [`quantize_weights_int`] into a matrix of the caller, to its bits and by its groups.
///
/// # Errors
/// [`Error::Shape`] if it has another shape; [`Error::Invalid`] if it has one bit.
pub fn quantize_weights_int_into<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    scheme: Scheme,
    matrix: &IntMatrix,
) -> Result<()> {
    let bits = matrix.bits();
    check(bits, matrix.group())?;
    let of = Groups::of("quantize_weights_int", w.shape(), matrix)?;
    if w.is_empty() {
        let empty = quantize_weights_int_cpu::<T>(
            &[],
            matrix.rows(),
            matrix.columns(),
            bits,
            matrix.group(),
            scheme,
        )?;
        return write_empty(encoder, &empty, matrix);
    }
    let (extent, Groups { rows, columns, words, groups, group_size }) = (of.extent(), of);
    let params = Params {
        rows,
        columns,
        words,
        groups,
        group_size,
        bits: bits.count() as u32,
        symmetric: (scheme == Scheme::Symmetric).into(),
    };
    encoder.dispatch(
        &QUANTIZE_WEIGHTS_INT,
        &params,
        &[w, &matrix.codes, &matrix.scales, &matrix.zeros],
        extent,
    )
}

fn check(bits: Bits, size: Option<usize>) -> Result<()> {
    if bits == Bits::One {
        let what = "one bit has no steps; quantize_weights_binary makes it".to_owned();
        return Err(Error::Invalid { op: "quantize_weights_int", what });
    }
    check_group(size)
}

/// The steps of a group.
#[derive(Clone, Copy)]
struct Steps {
    scale: f32,
    /// 1 / scale, or 0 where all codes are 0.
    per_unit: f32,
    zero: f32,
}

impl Steps {
    fn of<T: Float>(group: &[T], bits: Bits, scheme: Scheme) -> Self {
        let largest = |sign: f32| group.iter().fold(0f32, |most, &v| most.max(sign * v.into()));
        let (above, below) = (largest(1.0), largest(-1.0));
        let half = f32::from(bits.max_code() / 2);
        let scale = match scheme {
            Scheme::Asymmetric => (above + below) / f32::from(bits.max_code()),
            Scheme::Symmetric => above.max(below) / half,
        };
        if scale < SMALLEST_SCALE {
            return Self { scale: 0.0, per_unit: 0.0, zero: 0.0 };
        }
        let per_unit = 1.0 / scale;
        let zero = match scheme {
            Scheme::Asymmetric => {
                (below * per_unit).round_ties_even().min(f32::from(bits.max_code()))
            }
            Scheme::Symmetric => half + 1.0,
        };
        Self { scale, per_unit, zero }
    }

    fn code(self, v: f32, bits: Bits) -> u8 {
        ((v * self.per_unit).round_ties_even() + self.zero).clamp(0.0, f32::from(bits.max_code()))
            as u8
    }
}

/// The CPU twin: the same codes, scales and zero points, bit for bit. `w` is `[rows, columns]`.
///
/// # Errors
/// [`Error::Length`] if `w` is not `rows × columns`; [`Error::Invalid`] for weights that are not
/// finite, and as [`quantize_weights_int`].
pub fn quantize_weights_int_cpu<T: Float>(
    w: &[T],
    rows: usize,
    columns: usize,
    bits: Bits,
    size: Option<usize>,
    scheme: Scheme,
) -> Result<PackedInt> {
    check(bits, size)?;
    check_weights("quantize_weights_int", w, rows, columns)?;
    let of = |group: &[T]| Steps::of(group, bits, scheme);
    let steps: Vec<Steps> = match columns {
        0 => vec![of(&[]); if size.is_some() { 0 } else { rows }],
        _ => w
            .par_chunks(columns)
            .flat_map_iter(|row| row.chunks(size.unwrap_or(columns)).map(of))
            .collect(),
    };
    let (scales, zeros) = steps.iter().map(|steps| (steps.scale, steps.zero)).unzip();
    let (length, groups) = (size.unwrap_or(columns).max(1), steps.len() / rows.max(1));
    let code = |row: usize, column: usize| {
        steps[row * groups + column / length].code(w[row * columns + column].into(), bits)
    };
    PackedInt::from_fn(rows, columns, bits, Affine { group: size, scales, zeros }, code)
}
