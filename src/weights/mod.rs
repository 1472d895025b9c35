//! Weights in memory, on the host and on the GPU: ternary, of 1 to 8 bits, and dense.

pub(crate) mod dense;
pub(crate) mod int;
pub(crate) mod ternary;

pub use dense::{DenseElement, DenseMatrix, PackedDense};
pub use int::{affine::Affine, bits::Bits, matrix::IntMatrix, packed::PackedInt};
pub use ternary::{matrix::TernaryMatrix, packed::PackedTernary, scales::Scales};
