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
mod linear_distillation;
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
    ("tensor::activations", WgslAndReference, activations::cases),
    ("tensor::argmax", WgslAndReference, max::argmax_cases),
    ("tensor::binary", WgslAndReference, binary::cases),
    ("tensor::compare", Wgsl, compare::cases),
    ("tensor::copy", Wgsl, copy::cases),
    ("tensor::cross_entropy", KernelsAndReference, cross_entropy::cases),
    ("tensor::dropout", Wgsl, dropout::cases),
    ("tensor::finish", Kernels, epilogue::cases),
    ("tensor::gather", Wgsl, gather::cases),
    ("tensor::layer_norm", KernelsAndReference, layer_norm::cases),
    ("tensor::linear_cross_entropy", WgslAndReference, linear_cross_entropy::cases),
    ("tensor::linear_distillation", WgslAndReference, linear_distillation::cases),
    ("tensor::matmul", KernelsAndReference, matmul::cases),
    ("tensor::matmul_int8", Kernels, matmul_int8::cases),
    ("tensor::matmul_with", Kernels, matmul::finished),
    ("tensor::max", KernelsAndReference, max::cases),
    ("tensor::norm", KernelsAndReference, norm::cases),
    ("tensor::pad_rows", Kernels, pad_rows::cases),
    ("tensor::prefix_sum", WgslAndReference, prefix_sum::cases),
    ("tensor::select", Wgsl, select::cases),
    ("tensor::softmax", KernelsAndReference, softmax::cases),
    ("tensor::softmax_extremes", KernelsAndReference, softmax::extremes),
    ("tensor::strided", KernelsAndReference, strided::cases),
    ("tensor::sum", KernelsAndReference, sum::cases),
    ("tensor::unary", WgslAndReference, unary::cases),
    ("tensor::variance", KernelsAndReference, variance::cases),
];

/// The gradients of an RMS norm, whose kernels are those of a layer norm.
pub fn rms_norm_gradients() -> Vec<Case> {
    layer_norm::rms_cases()
}
