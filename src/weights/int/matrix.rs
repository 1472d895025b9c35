//! Matrices of 1 to 8 bits on the GPU.

use super::{
    affine::{Affine, check_group},
    bits::Bits,
    packed::PackedInt,
};
use crate::{
    error::Result,
    gpu::{context::Context, tensor::Tensor},
    weights::ternary::scales::groups,
};

impl PackedInt {
    /// Copies it to the GPU.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge); what the device reports.
    pub fn upload(&self, context: &Context) -> Result<IntMatrix> {
        let (rows, columns, bits, group) = (self.rows(), self.columns(), self.bits(), self.group());
        let per_group = [rows, groups(columns, group)];
        Ok(IntMatrix {
            codes: context.upload(self.words(), [rows, bits.row_words(columns)])?,
            scales: context.upload(&self.affine().scales, per_group)?,
            zeros: context.upload(&self.affine().zeros, per_group)?,
            rows,
            columns,
            bits,
            group,
        })
    }
}

/// A matrix of codes of 1, 2, 4 or 8 bits on the GPU: weight = scale·(code - zero). Clones share
/// its buffers.
#[derive(Clone, Debug)]
pub struct IntMatrix {
    pub(crate) codes: Tensor<u32>,
    /// `[rows, groups]`
    pub(crate) scales: Tensor<f32>,
    /// `[rows, groups]`
    pub(crate) zeros: Tensor<f32>,
    rows: usize,
    columns: usize,
    bits: Bits,
    group: Option<usize>,
}

impl IntMatrix {
    /// A matrix that an op will write, and can write again, with a scale and a zero point for each
    /// row, or for each `group` of columns: a multiple of 32.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for other groups;
    /// [`Error::TooLarge`](crate::Error::TooLarge).
    pub fn uninit(
        context: &Context,
        rows: usize,
        columns: usize,
        bits: Bits,
        group: Option<usize>,
    ) -> Result<Self> {
        check_group(group)?;
        let codes = Tensor::uninit(context, [rows, bits.row_words(columns)])?;
        let (scales, zeros) = (
            Tensor::uninit(context, [rows, groups(columns, group)])?,
            Tensor::uninit(context, [rows, groups(columns, group)])?,
        );
        Ok(Self { codes, scales, zeros, rows, columns, bits, group })
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The width of its codes.
    pub fn bits(&self) -> Bits {
        self.bits
    }

    /// The group size, where scales go per group of columns.
    pub fn group(&self) -> Option<usize> {
        self.group
    }

    /// Groups of a row.
    pub(crate) fn groups(&self) -> usize {
        groups(self.columns, self.group)
    }

    /// Columns of a group.
    pub(crate) fn group_size(&self) -> usize {
        self.group.unwrap_or(self.columns).max(1)
    }

    /// Words in a row.
    pub(crate) fn row_words(&self) -> usize {
        self.bits.row_words(self.columns)
    }

    /// Bytes of codes that one pass over the matrix reads.
    pub fn code_bytes(&self) -> usize {
        4 * self.rows * self.row_words()
    }

    /// Codes, scales and zero points as they lie in memory, for tests.
    #[doc(hidden)]
    pub fn tensors(&self) -> (&Tensor<u32>, &Tensor<f32>, &Tensor<f32>) {
        (&self.codes, &self.scales, &self.zeros)
    }

    /// Copies it back.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for scales that are not finite or out of range, as
    /// quantizers leave them for weights that are; what the device reports.
    pub async fn read(&self) -> Result<PackedInt> {
        let (words, scales, zeros) = (self.codes.read(), self.scales.read(), self.zeros.read());
        let affine = Affine { group: self.group, scales: scales.await?, zeros: zeros.await? };
        PackedInt::from_words(self.rows, self.columns, self.bits, words.await?, affine)
    }
}
