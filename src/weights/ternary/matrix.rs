//! Ternary matrices on the GPU.

use super::{
    layout::row_words,
    packed::PackedTernary,
    scales::{Scales, check_group, groups},
};
use crate::{
    error::Result,
    gpu::{context::Context, tensor::Tensor},
};

impl PackedTernary {
    /// Copies it to the GPU.
    ///
    /// # Errors
    /// As [`Tensor::uninit`].
    pub fn upload(&self, context: &Context) -> Result<TernaryMatrix> {
        Ok(TernaryMatrix {
            codes: context.upload(self.words(), [self.rows(), row_words(self.columns())])?,
            scales: context
                .upload(&self.row_scales(), [self.rows(), groups(self.columns(), self.group())])?,
            rows: self.rows(),
            columns: self.columns(),
            group: self.group(),
        })
    }
}

/// A ternary matrix on the GPU: what BitLinear multiplies by. Clones share its buffers.
#[derive(Clone, Debug)]
pub struct TernaryMatrix {
    pub(crate) codes: Tensor<u32>,
    /// `[rows, groups]`
    pub(crate) scales: Tensor<f32>,
    rows: usize,
    columns: usize,
    group: Option<usize>,
}

impl TernaryMatrix {
    /// A matrix that an op will write, and can write again, with a scale for each row, or for each
    /// `group` of columns: a multiple of 16.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for other groups;
    /// [`Error::TooLarge`](crate::Error::TooLarge).
    pub fn uninit(
        context: &Context,
        rows: usize,
        columns: usize,
        group: Option<usize>,
    ) -> Result<Self> {
        check_group(group)?;
        let codes = Tensor::uninit(context, [rows, row_words(columns)])?;
        Ok(Self {
            codes,
            scales: Tensor::uninit(context, [rows, groups(columns, group)])?,
            rows,
            columns,
            group,
        })
    }

    /// A matrix as [`TernaryMatrix::uninit`] makes it, at the beginning of tensors that others share.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) for tensors that are too small.
    #[cfg(feature = "models")]
    pub(crate) fn within(
        (codes, scales): (&Tensor<u32>, &Tensor<f32>),
        rows: usize,
        columns: usize,
        group: Option<usize>,
    ) -> Result<Self> {
        let codes = codes.beginning([rows, row_words(columns)])?;
        let scales = scales.beginning([rows, groups(columns, group)])?;
        Ok(Self { codes, scales, rows, columns, group })
    }

    pub(crate) fn with_scales(&self, scales: Tensor<f32>) -> Self {
        Self { scales, ..self.clone() }
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The group size, where scales go per group of columns.
    pub fn group(&self) -> Option<usize> {
        self.group
    }

    /// Words in a row.
    pub(crate) fn row_words(&self) -> usize {
        row_words(self.columns)
    }

    /// Bytes of codes that one pass over the matrix reads.
    pub fn code_bytes(&self) -> usize {
        4 * self.rows * self.row_words()
    }

    /// Codes and scales as they lie in memory, for tests.
    #[doc(hidden)]
    pub fn tensors(&self) -> (&Tensor<u32>, &Tensor<f32>) {
        (&self.codes, &self.scales)
    }

    /// Copies it back.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn read(&self) -> Result<PackedTernary> {
        let (words, scales) = (self.codes.read(), self.scales.read());
        let scales = Scales::compress(self.group, scales.await?);
        PackedTernary::from_words(self.rows, self.columns, words.await?, scales)
    }
}
