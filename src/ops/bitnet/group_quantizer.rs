//! What the quantisers of weights share: those to plain codes a workgroup for each group of
//! columns, all of them what a matrix of the caller must be.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::encoder::Encoder,
    kernel::source::Source,
    ops::tensor::broadcast::copy,
    shape::Shape,
    weights::{
        int::{matrix::IntMatrix, packed::PackedInt},
        ternary::{matrix::TernaryMatrix, packed::PackedTernary},
    },
};

/// Threads of a group.
pub(super) const THREADS: usize = 64;

/// The numbers of such a kernel, with `bytes` of workgroup memory.
pub(super) const fn by_groups(source: Source, bytes: u32) -> Source {
    source.workgroup_size([THREADS as u32, 1, 1]).tile([1, 1, 1]).workgroup_bytes(bytes)
}

/// What such a kernel is told of the matrix that it writes.
pub(super) struct Groups {
    pub rows: u32,
    pub columns: u32,
    /// Of a row of codes.
    pub words: u32,
    /// Of a row.
    pub groups: u32,
    /// Columns of a group.
    pub group_size: u32,
}

impl Groups {
    /// Of a matrix for weights of a shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if it has another.
    pub fn of(op: &'static str, w: Shape, matrix: &IntMatrix) -> Result<Self> {
        check_matrix(op, w, [matrix.rows(), matrix.columns()])?;
        let [rows, columns, words, groups, group_size] = [
            matrix.rows(),
            matrix.columns(),
            matrix.row_words(),
            matrix.groups(),
            matrix.group_size(),
        ]
        .map(|count| count as u32);
        Ok(Self { rows, columns, words, groups, group_size })
    }

    /// The workgroups of the kernel.
    pub fn extent(&self) -> [usize; 3] {
        [self.rows as usize * self.groups as usize, 1, 1]
    }
}

/// `[matrices, rows, columns]` of a stack of weights, `[.., rows, columns]`.
pub(super) fn stack_of(w: Shape) -> [usize; 3] {
    match *w.dims() {
        [ref stack @ .., rows, columns] => [stack.iter().product(), rows, columns],
        _ => [1, 1, w.as_matrix().1],
    }
}

/// Refuses weights in host memory that are not as many as such a stack has, or more matrices than
/// kernels count.
pub(super) fn check_stack<T>(op: &'static str, w: &[T], stack: [usize; 3]) -> Result<()> {
    // From the last: a product with 0 does not overflow.
    if stack.iter().rev().try_fold(1usize, |product, &dim| product.checked_mul(dim))
        != Some(w.len())
    {
        return Err(Error::Length { shape: stack.into(), found: w.len() });
    }
    match stack[0] {
        matrices if matrices > u32::MAX as usize => Err(Error::Invalid {
            op,
            what: format!("{matrices} matrices; kernels count them in 32 bits"),
        }),
        _ => Ok(()),
    }
}

/// Refuses a matrix `[rows, columns]` of the caller for weights of another shape, of which all but
/// the last dimension are rows.
pub(super) fn check_matrix(op: &'static str, w: Shape, matrix: [usize; 2]) -> Result<()> {
    let (rows, columns) = w.as_matrix();
    if matrix == [rows, columns] {
        return Ok(());
    }
    Err(Error::Shape {
        op,
        what: "the output",
        expected: format!("[{rows}, {columns}]"),
        found: matrix.into(),
    })
}

/// Refuses weights in host memory that are no `[rows, columns]`, are not finite, or have more rows
/// than a matrix may.
pub(super) fn check_weights<T: Float>(
    op: &'static str,
    w: &[T],
    rows: usize,
    columns: usize,
) -> Result<()> {
    if rows.checked_mul(columns) != Some(w.len()) {
        return Err(Error::Length { shape: [rows, columns].into(), found: w.len() });
    }
    let what = if rows > u32::MAX as usize {
        format!("{rows} rows; kernels count them in 32 bits")
    } else if let Some(at) = w.iter().position(|&v| !v.into().is_finite()) {
        format!(
            "weights must be finite; that of row {}, column {} is not",
            at / columns,
            at % columns
        )
    } else {
        return Ok(());
    };
    Err(Error::Invalid { op, what })
}

/// Refuses a matrix of the caller with scales by groups of columns, where there are none.
pub(super) fn check_no_groups(op: &'static str, group: Option<usize>) -> Result<()> {
    match group {
        None => Ok(()),
        Some(size) => Err(Error::Invalid {
            op,
            what: format!(
                "the output has scales by groups of {size} columns; none are made by groups"
            ),
        }),
    }
}

/// A matrix without weights, as a CPU twin has it: there is nothing to quantise, but its scales
/// must be something.
pub(super) fn write_empty_ternary(
    encoder: &mut Encoder,
    empty: &PackedTernary,
    matrix: &TernaryMatrix,
) -> Result<()> {
    let empty = empty.upload(encoder.context())?;
    copy(&empty.scales).forward_into(encoder, &matrix.scales)
}

/// The same with zero points.
pub(super) fn write_empty(
    encoder: &mut Encoder,
    empty: &PackedInt,
    matrix: &IntMatrix,
) -> Result<()> {
    let empty = empty.upload(encoder.context())?;
    encoder.transaction(|encoder| {
        copy(&empty.scales).forward_into(encoder, &matrix.scales)?;
        copy(&empty.zeros).forward_into(encoder, &matrix.zeros)
    })
}
