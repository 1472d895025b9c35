//! The heads of a gated DeltaNet, and the checks that its ops have in common.

use crate::{
    error::{Error, Result},
    gpu::tensor::Tensor,
};
use std::fmt;

/// The heads of a gated DeltaNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Query heads, and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query or key head, at most [`DeltaShape::MAX_DIM`].
    pub key_dim: usize,
    /// Width of a value head, at most [`DeltaShape::MAX_DIM`].
    pub value_dim: usize,
    /// Whether value head `h` reads key head `h % key_heads`, not `h / (value_heads / key_heads)`.
    pub tiled: bool,
    /// Whether the output has tiled value heads in the other order.
    pub regrouped: bool,
}

impl fmt::Display for DeltaShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key_heads, value_heads, key_dim, value_dim, .. } = self;
        write!(f, "{key_heads} key heads of {key_dim}, {value_heads} value heads of {value_dim}")
    }
}

impl DeltaShape {
    /// The widest head, of which threads hold a column of the state.
    pub const MAX_DIM: usize = 256;

    /// More heads than any model has, so that no product of them overflows.
    const MAX_HEADS: usize = 1 << 16;

    /// Features of a token: queries, keys and values.
    pub fn mixed(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.values()
    }

    /// Features of all value heads.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Numbers of a sequence's state, `[value_heads, key_dim, value_dim]`.
    pub fn state(&self) -> usize {
        self.key_dim * self.values()
    }

    /// The key head that a value head reads.
    pub fn key_head(&self, head: usize) -> usize {
        match self.tiled {
            true => head % self.key_heads,
            false => head / (self.value_heads / self.key_heads).max(1),
        }
    }

    /// The place of a value head in the output.
    pub fn place(&self, head: usize) -> usize {
        let group = (self.value_heads / self.key_heads.max(1)).max(1);
        match self.regrouped {
            true => head % self.key_heads * group + head / self.key_heads,
            false => head,
        }
    }

    /// Refuses heads that the kernels do not compute.
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        let Self { key_heads, value_heads, key_dim, value_dim, .. } = *self;
        let widths = 1..=Self::MAX_DIM;
        let sound = key_heads > 0
            && (1..=Self::MAX_HEADS).contains(&value_heads)
            && value_heads.is_multiple_of(key_heads);
        if sound && widths.contains(&key_dim) && widths.contains(&value_dim) {
            return Ok(());
        }
        let what = format!(
            "{self}: value heads must be a multiple of key heads and at most {}, widths 1 to {}",
            Self::MAX_HEADS,
            Self::MAX_DIM
        );
        Err(Error::Invalid { op, what })
    }
}

/// The rates of a gated delta rule, as slices or as tensors: `alpha` and `beta` of tokens
/// `[tokens, value_heads]`, and what is added to and multiplied with `alpha`, `[value_heads]`.
#[derive(Debug)]
pub struct DeltaRates<'a, V: ?Sized> {
    /// What decays the state.
    pub alpha: &'a V,
    /// How much of a token is written.
    pub beta: &'a V,
    /// Added to `alpha`.
    pub dt_bias: &'a V,
    /// Multiplies softplus of the sum; at most 0.
    pub decay: &'a V,
}

impl<V: ?Sized> Clone for DeltaRates<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for DeltaRates<'_, V> {}

/// Checks that a tensor has these dimensions.
pub(super) fn expect_shape(
    op: &'static str,
    what: &'static str,
    tensor: &Tensor<f32>,
    dims: &[usize],
) -> Result<()> {
    let found = tensor.shape();
    if found.dims() == dims {
        return Ok(());
    }
    let expected = crate::shape::Shape::of(dims).to_string();
    Err(Error::Shape { op, what, expected, found })
}

/// Checks that a matrix has a row for each token and at least `columns` columns. Returns their
/// number.
pub(super) fn expect_columns(
    op: &'static str,
    what: &'static str,
    tensor: &Tensor<f32>,
    (tokens, columns): (usize, usize),
) -> Result<usize> {
    let (rows, stride) = tensor.shape().as_matrix();
    if rows == tokens && stride >= columns {
        return Ok(stride);
    }
    let expected = format!("[{tokens}, {columns} or more]");
    Err(Error::Shape { op, what, expected, found: tensor.shape() })
}
