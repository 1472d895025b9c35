//! Binary quantisation, BitNet's first (Wang et al. 2023, arXiv:2310.11453): the sign of W - mean
//! W, scaled by β = mean|W|. Codes are 1 for +β and 0 for -β: scale 2β, zero point ½.

use super::group_quantizer::{
    Groups, THREADS, by_groups, check_no_groups, check_stack, check_weights, stack_of, write_empty,
};
use crate::{
    element::Float,
    error::{Error, Result},
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
    msl,
    ops::bitnet::quantize_weights::strided_sum,
    params,
    shape::Shape,
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

params! { struct SumParams { length: u32, chunks: u32, matrices: u32 } }
params! { struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32, matrix_rows: u32, chunks: u32, count: f32 } }

const SUM_THREADS: usize = 256;
/// Elements that one workgroup of `weight_sums` adds up.
const CHUNK: usize = SUM_THREADS * SUM_THREADS;

static WEIGHT_SUMS: Kernel = Kernel::trusted(
    "weight_sums",
    SumParams::FIELDS,
    &[read("w", Float("X")), read_write("sums", F32)],
    &[
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "shared/fixed_tree", "bitnet/weight_sums"])
            .workgroup_size([SUM_THREADS as u32, 1, 1])
            .workgroup_bytes(4 * SUM_THREADS as u32)
            .tile([CHUNK as u32, 1, 1])
            .work(Work::new(1, "element", 4, 2)),
        Source::msl(msl!["shared/prelude", "shared/fixed_tree", "bitnet/weight_sums"])
            .workgroup_size([SUM_THREADS as u32, 1, 1])
            .workgroup_bytes(4 * SUM_THREADS as u32)
            .tile([CHUNK as u32, 1, 1]),
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

/// Quantises `w` `[.., columns]` (`f32` or `f16`) to one bit with the mean and the scale of the
/// whole tensor; all but the last dimension are rows. A weight is β where it is above the mean,
/// else -β. A β below 2^-81 counts as 0.
///
/// Weights must be finite: otherwise codes are 0 and scales NaN, which [`IntMatrix::read`] refuses.
///
/// # Errors
/// What the device reports.
pub fn quantize_weights_binary<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
) -> Result<IntMatrix> {
    let matrix = uninit(encoder, w.shape(), None)?;
    quantize_weights_binary_into(encoder, w, &matrix)?;
    Ok(matrix)
}

/// [`quantize_weights_binary`] into a matrix of the caller.
///
/// # Errors
/// [`Error::Shape`] if it has another shape; [`Error::Invalid`] if it has other bits, or scales by
/// groups of columns.
pub fn quantize_weights_binary_into<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    matrix: &IntMatrix,
) -> Result<()> {
    let (rows, columns) = w.shape().as_matrix();
    by_sums(encoder, w, [1, rows, columns], matrix)
}

/// Quantises a stack of matrices, `w` `[.., rows, columns]`, to one bit, each with a mean and a
/// scale and to the bits of [`quantize_weights_binary`] of it alone: the experts of a mixture, or
/// heads. They become one matrix, a row after another, that is multiplied at once. What is not
/// finite harms its own matrix only.
///
/// # Errors
/// What the device reports.
pub fn quantize_weights_binary_by_matrix<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
) -> Result<IntMatrix> {
    let matrix = uninit(encoder, w.shape(), None)?;
    quantize_weights_binary_by_matrix_into(encoder, w, &matrix)?;
    Ok(matrix)
}

/// [`quantize_weights_binary_by_matrix`] into a matrix of the caller, which has the rows of all of
/// them.
///
/// # Errors
/// As [`quantize_weights_binary_into`].
pub fn quantize_weights_binary_by_matrix_into<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    matrix: &IntMatrix,
) -> Result<()> {
    by_sums(encoder, w, stack_of(w.shape()), matrix)
}

/// Quantises `w` `[.., columns]` to one bit with a mean and a scale for every `size` neighbouring
/// columns of a row, or with `None` for each row; the last group may be short. Else as
/// [`quantize_weights_binary`]; what is not finite harms its own group only.
///
/// # Errors
/// [`Error::Invalid`] if the size is no multiple of 32.
pub fn quantize_weights_binary_by_group<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    size: Option<usize>,
) -> Result<IntMatrix> {
    let matrix = uninit(encoder, w.shape(), size)?;
    quantize_weights_binary_by_group_into(encoder, w, &matrix)?;
    Ok(matrix)
}

/// [`quantize_weights_binary_by_group`] into a matrix of the caller, by the groups that it has.
///
/// # Errors
/// [`Error::Shape`] if it has another shape; [`Error::Invalid`] if it has other bits.
pub fn quantize_weights_binary_by_group_into<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    matrix: &IntMatrix,
) -> Result<()> {
    let groups = check_output(w, matrix)?;
    let none = Tensor::uninit(encoder.context(), [1])?;
    record(encoder, w, &none, [0, matrix.rows(), matrix.columns()], groups, matrix)
}

const OP: &str = "quantize_weights_binary";

fn uninit(encoder: &Encoder, w: Shape, group: Option<usize>) -> Result<IntMatrix> {
    let (rows, columns) = w.as_matrix();
    IntMatrix::uninit(encoder.context(), rows, columns, Bits::One, group)
}

fn check_output<T: Float>(w: &Tensor<T>, matrix: &IntMatrix) -> Result<Groups> {
    if matrix.bits() != Bits::One {
        return Err(Error::Invalid {
            op: OP,
            what: format!("the output has {} bits; one is made", matrix.bits().count()),
        });
    }
    Groups::of(OP, w.shape(), matrix)
}

/// Records a stack of `[matrices, rows, columns]` with means for each, of sums that are taken
/// before.
fn by_sums<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    [matrices, rows, columns]: [usize; 3],
    matrix: &IntMatrix,
) -> Result<()> {
    check_no_groups(OP, matrix.group())?;
    let groups = check_output(w, matrix)?;
    let chunks = (rows * columns).div_ceil(CHUNK);
    let sums = Tensor::uninit(encoder.context(), [matrices * chunks, 2])?;
    let params = SumParams {
        length: (rows * columns) as u32,
        chunks: chunks as u32,
        matrices: matrices as u32,
    };
    encoder.dispatch(&WEIGHT_SUMS, &params, &[w, &sums], [matrices * chunks * CHUNK, 1, 1])?;
    record(encoder, w, &sums, [chunks, rows, columns], groups, matrix)
}

/// Records matrices of `matrix_rows × matrix_columns` with the means that follow from so many
/// chunks of sums for each, or without chunks from groups.
fn record<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    sums: &Tensor<f32>,
    [chunks, matrix_rows, matrix_columns]: [usize; 3],
    of: Groups,
    matrix: &IntMatrix,
) -> Result<()> {
    if w.is_empty() {
        let empty = quantize_weights_binary_by_group_cpu::<T>(
            &[],
            matrix.rows(),
            matrix.columns(),
            matrix.group(),
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
        matrix_rows: matrix_rows as u32,
        chunks: chunks as u32,
        count: (matrix_rows * matrix_columns) as f32,
    };
    let bindings: [&dyn Bind; 5] = [w, sums, &matrix.codes, &matrix.scales, &matrix.zeros];
    encoder.dispatch(&QUANTIZE_WEIGHTS_BINARY, &params, &bindings, extent)
}

/// Mean and β of weights.
#[derive(Clone, Copy)]
struct Means {
    signed: f32,
    absolute: f32,
}

impl Means {
    /// Of `count` weights, in the order of the kernel: what each of its threads adds up, then a
    /// tree.
    fn new<const LANES: usize>(
        values: impl Iterator<Item = [f32; 2]> + Clone,
        count: usize,
    ) -> Self {
        let mean = |i: usize| {
            if count == 0 {
                0.0
            } else {
                strided_sum::<LANES>(values.clone().map(|v| v[i])) / count as f32
            }
        };
        Self { signed: mean(0), absolute: mean(1) }
    }

    /// Of all weights, by sums of chunks in the order of the kernels.
    fn by_chunks<T: Float>(w: &[T]) -> Self {
        let chunk = |chunk: &[T]| {
            [0, 1].map(|i| {
                strided_sum::<SUM_THREADS>(chunk.iter().map(|v| signed_and_absolute(v)[i]))
            })
        };
        let sums: Vec<[f32; 2]> = w.par_chunks(CHUNK).map(chunk).collect();
        Self::new::<THREADS>(sums.iter().copied(), w.len())
    }

    /// 2β.
    fn scale(self) -> f32 {
        let scale = 2.0 * self.absolute;
        if scale < SMALLEST_SCALE { 0.0 } else { scale }
    }
}

fn signed_and_absolute<T: Float>(v: &T) -> [f32; 2] {
    let v: f32 = (*v).into();
    [v, v.abs()]
}

/// The CPU twin of [`quantize_weights_binary`]: the same codes and scales, bit for bit. `w` is
/// `[rows, columns]`.
///
/// # Errors
/// [`Error::Length`] if `w` is not `rows × columns`; [`Error::Invalid`] for weights that are not
/// finite.
pub fn quantize_weights_binary_cpu<T: Float>(
    w: &[T],
    rows: usize,
    columns: usize,
) -> Result<PackedInt> {
    check_weights(OP, w, rows, columns)?;
    pack(w, rows, columns, None, &vec![Means::by_chunks(w); rows])
}

/// The CPU twin of [`quantize_weights_binary_by_matrix`]: the same codes and scales, bit for bit.
/// `w` is `[matrices, rows, columns]`.
///
/// # Errors
/// [`Error::Length`] if it is not; [`Error::Invalid`] for weights that are not finite.
pub fn quantize_weights_binary_by_matrix_cpu<T: Float>(
    w: &[T],
    [matrices, rows, columns]: [usize; 3],
) -> Result<PackedInt> {
    check_stack(OP, w, [matrices, rows, columns])?;
    if w.is_empty() {
        return quantize_weights_binary_cpu::<T>(&[], matrices.saturating_mul(rows), columns);
    }
    check_weights(OP, w, matrices * rows, columns)?;
    let means: Vec<_> =
        w.chunks(rows * columns).flat_map(|w| vec![Means::by_chunks(w); rows]).collect();
    pack(w, matrices * rows, columns, None, &means)
}

/// The CPU twin of [`quantize_weights_binary_by_group`].
///
/// # Errors
/// As [`quantize_weights_binary_cpu`]; [`Error::Invalid`] if the size is no multiple of 32.
pub fn quantize_weights_binary_by_group_cpu<T: Float>(
    w: &[T],
    rows: usize,
    columns: usize,
    size: Option<usize>,
) -> Result<PackedInt> {
    check_group(size)?;
    check_weights(OP, w, rows, columns)?;
    let of =
        |group: &[T]| Means::new::<THREADS>(group.iter().map(signed_and_absolute), group.len());
    let means: Vec<Means> = match columns {
        0 => vec![of(&[]); if size.is_some() { 0 } else { rows }],
        _ => {
            w.chunks(columns).flat_map(|row| row.chunks(size.unwrap_or(columns)).map(of)).collect()
        }
    };
    pack(w, rows, columns, size, &means)
}

fn pack<T: Float>(
    w: &[T],
    rows: usize,
    columns: usize,
    group: Option<usize>,
    means: &[Means],
) -> Result<PackedInt> {
    let (size, groups) = (group.unwrap_or(columns).max(1), means.len() / rows.max(1));
    let affine = Affine {
        group,
        scales: means.iter().map(|means| means.scale()).collect(),
        zeros: vec![0.5; means.len()],
    };
    let code = |row: usize, column: usize| {
        u8::from(w[row * columns + column].into() > means[row * groups + column / size].signed)
    };
    PackedInt::from_fn(rows, columns, Bits::One, affine, code)
}
