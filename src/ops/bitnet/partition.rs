//! Which weights share a scale: for the kernels and the CPU references of the weight quantizers.

use crate::{
    error::{Error, Result},
    kernel::source::Source,
    shape::Shape,
    weights::{int::bits::Bits, ternary::scales::groups},
};
use rayon::prelude::*;

/// Name of the quantizers in errors.
pub const OP: &str = "quantize_weights";

/// Threads of a kernel that takes a group in a workgroup.
pub const THREADS: usize = 64;

/// Sets the workgroup of such a kernel, with `bytes` of workgroup memory.
pub const fn by_groups(source: Source, bytes: u32) -> Source {
    source.workgroup_size([THREADS as u32, 1, 1]).tile([1, 1, 1]).workgroup_bytes(bytes)
}

/// Weights for which there is one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    Tensor,
    /// Each matrix of a stack.
    Matrix,
    Row,
    /// As many neighboring columns of a row; its last group may be short.
    Group(usize),
}

impl Granularity {
    pub const fn group(self) -> Option<usize> {
        match self {
            Self::Group(size) => Some(size),
            _ => None,
        }
    }
}

/// Codes of an integer matrix.
#[derive(Clone, Copy)]
pub struct IntCodes {
    pub bits: Bits,
    /// Whether codes are signs, of weights less their mean.
    pub binary: bool,
    /// Whether each scale has a zero point of its own.
    pub asymmetric: bool,
}

/// Weights `[matrices, rows, columns]`, divided by scale.
pub struct Partition {
    pub matrices: usize,
    /// Rows of a matrix.
    pub rows: usize,
    pub columns: usize,
    /// Whether a matrix has one scale; else a row has, or each of its groups.
    pub whole: bool,
    pub group: Option<usize>,
}

impl Partition {
    /// Divides weights of a shape, of which all but the last dimension are rows.
    ///
    /// # Errors
    /// [`Error::Length`] if there are not `length`; [`Error::Invalid`] for more rows or matrices
    /// than kernels count.
    pub fn new(shape: Shape, length: usize, per: Granularity) -> Result<Self> {
        // From the last: a product with 0 does not overflow.
        let product = |dims: &[usize]| {
            dims.iter().rev().try_fold(1usize, |product, &dim| product.checked_mul(dim))
        };
        if product(shape.dims()) != Some(length) {
            return Err(Error::Length { shape, found: length });
        }
        let counted = |dims: &[usize]| product(dims).filter(|&count| count <= u32::MAX as usize);
        let (stack, rows, columns) = match *shape.dims() {
            [ref stack @ .., rows, columns] => (stack, rows, columns),
            [columns] => (&[][..], 1, columns),
            [] => (&[][..], 1, 1),
        };
        let (Some(matrices), Some(all)) = (counted(stack), counted(&[stack, &[rows]].concat()))
        else {
            let what = format!("weights {shape}: kernels count rows and matrices in 32 bits");
            return Err(Error::Invalid { op: OP, what });
        };
        let (matrices, rows) = if per == Granularity::Matrix { (matrices, rows) } else { (1, all) };
        let whole = matches!(per, Granularity::Tensor | Granularity::Matrix);
        Ok(Self { matrices, rows, columns, whole, group: per.group() })
    }

    /// Returns the rows of all matrices.
    pub fn all_rows(&self) -> usize {
        self.matrices * self.rows
    }

    /// Returns rows, columns, groups of a row and columns of a group, for a kernel.
    pub fn counts(&self) -> [u32; 4] {
        let groups = groups(self.columns, self.group);
        let size = self.group.unwrap_or(self.columns).max(1);
        [self.all_rows(), self.columns, groups, size].map(|count| count as u32)
    }

    /// Returns the extent of a kernel that takes a group in a workgroup.
    pub fn extent(&self) -> [usize; 3] {
        [self.all_rows() * groups(self.columns, self.group), 1, 1]
    }

    /// Returns what `of` makes of the weights of each scale, for each row and group of columns.
    pub fn map<T: Sync, S: Clone + Send>(&self, w: &[T], of: impl Fn(&[T]) -> S + Sync) -> Vec<S> {
        if w.is_empty() {
            return vec![of(&[]); self.extent()[0]];
        }
        let repeats = if self.whole { self.rows } else { 1 };
        let (length, of) = (repeats * self.columns, &of);
        let size = self.group.unwrap_or(length);
        w.par_chunks(length)
            .flat_map_iter(|part| {
                part.chunks(size).flat_map(move |w| std::iter::repeat_n(of(w), repeats))
            })
            .collect()
    }

    /// Returns where [`map`](Self::map) has the result of a weight.
    pub fn at(&self, row: usize, column: usize) -> usize {
        match self.group {
            Some(size) => row * self.columns.div_ceil(size) + column / size,
            None => row,
        }
    }
}
