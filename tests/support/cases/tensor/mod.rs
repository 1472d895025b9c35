//! Ops on tensors of any meaning.

pub(super) mod activations;
mod binary;
mod compare;
mod copy;
mod cross_entropy;
mod dropout;
pub(super) mod epilogue;
mod gather;
mod layer_norm;
mod linear_cross_entropy;
mod matmul;
mod matmul_int8;
mod max;
mod norm;
mod pad_rows;
mod prefix_sum;
mod reductions;
mod select;
mod softmax;
mod strided;
mod sum;
pub(super) mod unary;
mod variance;

pub use binary::shape;

use super::{By::*, Family};
use crate::Case;

pub(super) use matmul::activated;

pub const OPS: Family = &[
    ("tensor::activations", WgslAndTwin, activations::cases),
    ("tensor::argmax", WgslAndTwin, max::argmax_cases),
    ("tensor::binary", WgslAndTwin, binary::cases),
    ("tensor::compare", Wgsl, compare::cases),
    ("tensor::copy", Wgsl, copy::cases),
    ("tensor::cross_entropy", KernelsAndTwin, cross_entropy::cases),
    ("tensor::dropout", Wgsl, dropout::cases),
    ("tensor::finish", Kernels, epilogue::cases),
    ("tensor::gather", Wgsl, gather::cases),
    ("tensor::layer_norm", KernelsAndTwin, layer_norm::cases),
    ("tensor::linear_cross_entropy", WgslAndTwin, linear_cross_entropy::cases),
    ("tensor::matmul", KernelsAndTwin, matmul::cases),
    ("tensor::matmul_int8", Kernels, matmul_int8::cases),
    ("tensor::matmul_with", Kernels, matmul::finished),
    ("tensor::max", KernelsAndTwin, max::cases),
    ("tensor::norm", KernelsAndTwin, norm::cases),
    ("tensor::pad_rows", Kernels, pad_rows::cases),
    ("tensor::prefix_sum", WgslAndTwin, prefix_sum::cases),
    ("tensor::select", Wgsl, select::cases),
    ("tensor::softmax", KernelsAndTwin, softmax::cases),
    ("tensor::softmax_extremes", KernelsAndTwin, softmax::extremes),
    ("tensor::strided", KernelsAndTwin, strided::cases),
    ("tensor::sum", KernelsAndTwin, sum::cases),
    ("tensor::unary", WgslAndTwin, unary::cases),
    ("tensor::variance", KernelsAndTwin, variance::cases),
];

/// The gradients of an RMS norm, whose kernels are those of a layer norm.
pub fn rms_norm_gradients() -> Vec<Case> {
    layer_norm::rms_cases()
}
