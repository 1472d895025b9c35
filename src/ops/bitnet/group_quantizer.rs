//! What the quantisers of weights to plain codes share: a workgroup for each group of columns.

use crate::{
    element::Float,
    error::Result,
    gpu::{context::Context, tensor::Tensor},
    kernel::source::Source,
    weights::int::{bits::Bits, matrix::IntMatrix},
};

/// Threads of a group.
pub(super) const THREADS: usize = 64;

/// The numbers of such a kernel, with `bytes` of workgroup memory.
pub(super) const fn by_groups(source: Source, bytes: u32) -> Source {
    source.workgroup_size([THREADS as u32, 1, 1]).tile([1, 1, 1]).workgroup_bytes(bytes)
}

/// What such a kernel will write for `w`, and its shape.
pub(super) struct Made {
    pub matrix: IntMatrix,
    pub rows: u32,
    pub columns: u32,
    /// Of a row of codes.
    pub words: u32,
    /// Of a row.
    pub groups: u32,
    /// Columns of a group.
    pub group_size: u32,
}

impl Made {
    pub fn new<T: Float>(context: &Context, w: &Tensor<T>, bits: Bits, group: Option<usize>) -> Result<Self> {
        let (rows, columns) = w.shape().as_matrix();
        let matrix = IntMatrix::uninit(context, rows, columns, bits, group)?;
        let [rows, columns, words, groups, group_size] =
            [rows, columns, matrix.row_words(), matrix.groups(), matrix.group_size()].map(|count| count as u32);
        Ok(Self { matrix, rows, columns, words, groups, group_size })
    }

    /// The workgroups of the kernel.
    pub fn extent(&self) -> [usize; 3] {
        [self.rows as usize * self.groups as usize, 1, 1]
    }
}
