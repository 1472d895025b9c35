//! Absmean quantisation with a scale for each row, or for each group of columns of a row: s = 1 /
//! max(mean|W|, 1e-5) over the group, Wq = clamp(round(W·s), -1, 1), β = 1 / s.

use super::group_quantizer::{check_matrix, check_no_groups, write_empty_ternary};
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
    msl,
    ops::bitnet::quantize_weights::strided_sum,
    params,
    weights::ternary::{
        matrix::TernaryMatrix,
        packed::PackedTernary,
        scales::{Scales, check_group},
    },
    wgsl,
};

params! { struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_words: u32 } }

const THREADS: usize = 64;

static QUANTIZE_WEIGHTS_BY_GROUP: Kernel = Kernel::trusted(
    "quantize_weights_by_group",
    Params::FIELDS,
    &[read("w", Float("X")), read_write("codes", U32), read_write("w_scale", F32)],
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            EXACT,
            "shared/finite",
            "shared/ternary",
            "shared/fixed_tree",
            "bitnet/quantize_weights_by_group"
        ])
        .workgroup_size([THREADS as u32, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(4 * THREADS as u32),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "shared/finite",
            "shared/ternary",
            "shared/fixed_tree",
            "bitnet/quantize_weights_by_group"
        ])
        .workgroup_size([THREADS as u32, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(4 * THREADS as u32),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&QUANTIZE_WEIGHTS_BY_GROUP];

/// Quantises `w` `[.., columns]` (`f32` or `f16`) with one scale for each row; all but the last
/// dimension are rows.
///
/// Weights must be finite: otherwise the codes of the row are zero and its scale is NaN, which
/// [`TernaryMatrix::read`] refuses.
///
/// # Errors
/// What the device reports.
pub fn quantize_weights_by_row<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
) -> Result<TernaryMatrix> {
    record_new(encoder, w, None)
}

/// [`quantize_weights_by_row`] into a matrix of the caller.
///
/// # Errors
/// [`Error::Shape`] if it has another shape; [`Error::Invalid`] if its scales go by groups of
/// columns.
pub fn quantize_weights_by_row_into<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    matrix: &TernaryMatrix,
) -> Result<()> {
    check_no_groups("quantize_weights_by_row", matrix.group())?;
    record(encoder, "quantize_weights_by_row", w, matrix)
}

/// Quantises `w` `[.., columns]` with one scale for every `size` neighbouring columns of a row; the
/// last group may be short. Else as [`quantize_weights_by_row`].
///
/// # Errors
/// [`Error::Invalid`] if `size` is no multiple of 16.
pub fn quantize_weights_by_group<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    size: usize,
) -> Result<TernaryMatrix> {
    record_new(encoder, w, Some(size))
}

/// [`quantize_weights_by_group`] into a matrix of the caller, by the groups that it has.
///
/// # Errors
/// [`Error::Shape`] if it has another shape; [`Error::Invalid`] if it has no groups.
pub fn quantize_weights_by_group_into<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    matrix: &TernaryMatrix,
) -> Result<()> {
    let op = "quantize_weights_by_group";
    if matrix.group().is_none() {
        return Err(Error::Invalid {
            op,
            what: "the output has no scales by groups of columns".to_owned(),
        });
    }
    record(encoder, op, w, matrix)
}

fn record_new<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    group: Option<usize>,
) -> Result<TernaryMatrix> {
    let (rows, columns) = w.shape().as_matrix();
    let matrix = TernaryMatrix::uninit(encoder.context(), rows, columns, group)?;
    record(encoder, "quantize_weights_by_group", w, &matrix)?;
    Ok(matrix)
}

fn record<T: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    w: &Tensor<T>,
    matrix: &TernaryMatrix,
) -> Result<()> {
    let (rows, columns, words) = (matrix.rows(), matrix.columns(), matrix.row_words());
    check_matrix(op, w.shape(), [rows, columns])?;
    if w.is_empty() {
        return write_empty_ternary(
            encoder,
            &quantize_groups_cpu::<T>(&[], rows, columns, matrix.group())?,
            matrix,
        );
    }
    let group_words = matrix.group().map_or(words, |size| size / 16);
    let groups = matrix.scales.len() / rows;
    let params = Params {
        rows: rows as u32,
        columns: columns as u32,
        words: words as u32,
        groups: groups as u32,
        group_words: group_words as u32,
    };
    encoder.dispatch(
        &QUANTIZE_WEIGHTS_BY_GROUP,
        &params,
        &[w, &matrix.codes, &matrix.scales],
        [rows * groups, 1, 1],
    )
}

/// The CPU twin of [`quantize_weights_by_row`]: the same codes and scales, bit for bit. `w` is
/// `[rows, columns]`.
///
/// # Errors
/// [`Error::Length`] if `w` is not `rows × columns`; [`Error::Invalid`] for weights that are not
/// finite.
pub fn quantize_weights_by_row_cpu<T: Float>(
    w: &[T],
    rows: usize,
    columns: usize,
) -> Result<PackedTernary> {
    quantize_groups_cpu(w, rows, columns, None)
}

/// The CPU twin of [`quantize_weights_by_group`].
///
/// # Errors
/// As [`quantize_weights_by_row_cpu`]; [`Error::Invalid`] if `size` is no multiple of 16.
pub fn quantize_weights_by_group_cpu<T: Float>(
    w: &[T],
    rows: usize,
    columns: usize,
    size: usize,
) -> Result<PackedTernary> {
    check_group(Some(size))?;
    quantize_groups_cpu(w, rows, columns, Some(size))
}

fn quantize_groups_cpu<T: Float>(
    w: &[T],
    rows: usize,
    columns: usize,
    group: Option<usize>,
) -> Result<PackedTernary> {
    if rows.checked_mul(columns) != Some(w.len()) {
        return Err(Error::Length { shape: [rows, columns].into(), found: w.len() });
    }
    if let Some(at) = w.iter().position(|&v| !v.into().is_finite()) {
        let what = format!(
            "weights must be finite; that of row {}, column {} is not",
            at / columns,
            at % columns
        );
        return Err(Error::Invalid { op: "quantize_weights_by_group", what });
    }
    let size = group.unwrap_or(columns).max(1);
    let scale = |group: &[T]| {
        let mean =
            strided_sum::<THREADS>(group.iter().map(|&v| v.into().abs())) / group.len() as f32;
        1.0 / mean.max(1e-5)
    };
    let s: Vec<f32> =
        w.chunks(columns.max(1)).flat_map(|row| row.chunks(size).map(scale)).collect();
    let groups = columns.div_ceil(size);
    let code = |row: usize, column: usize| {
        let value: f32 = w[row * columns + column].into();
        ((value * s[row * groups + column / size]).round_ties_even().clamp(-1.0, 1.0) as i32 + 1)
            as u32
    };
    let scales: Vec<f32> = s.iter().map(|s| 1.0 / s).collect();
    let scales = match group {
        Some(size) => Scales::Groups { size, scales },
        None if columns == 0 => Scales::Tensor(1.0),
        None => Scales::Segments(scales.into_iter().map(|scale| (1, scale)).collect()),
    };
    PackedTernary::from_codes(rows, columns, scales, code)
}
