//! Weight matrices, packed on the host and uploaded to the GPU.
//!
//! | weights | on the host | on the GPU |
//! | --- | --- | --- |
//! | ternary: -1, 0, 1, in 2 bits each | [`PackedTernary`] | [`TernaryMatrix`] |
//! | integers of 1, 2, 4 or 8 bits, with scales and zero points | [`PackedInt`] | [`IntMatrix`] |
//! | floats or int8: embeddings and LM heads | [`PackedDense`] | [`DenseMatrix`] |
//!
//! [`WeightQuantizer`](crate::bitnet::WeightQuantizer) makes the first two from floats on the GPU,
//! [`cpu::quantize_weights`](crate::cpu::quantize_weights) on the CPU.

pub(crate) mod dense;
pub(crate) mod int;
pub(crate) mod ternary;

pub use dense::{DenseElement, DenseMatrix, PackedDense};
pub use int::{affine::Affine, bits::Bits, matrix::IntMatrix, packed::PackedInt};
pub use ternary::{matrix::TernaryMatrix, packed::PackedTernary, scales::Scales};
