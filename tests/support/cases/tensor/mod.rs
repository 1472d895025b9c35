//! Ops on tensors of any meaning.

mod activations;
mod binary;
mod compare;
mod copy;
mod pad_rows;
mod select;
mod strided;
mod unary;

use super::{By::*, Family};

pub const OPS: Family = &[
    ("tensor::activations", KernelsAndTwin, activations::cases),
    ("tensor::binary", KernelsAndTwin, binary::cases),
    ("tensor::compare", Kernels, compare::cases),
    ("tensor::copy", Kernels, copy::cases),
    ("tensor::pad_rows", Kernels, pad_rows::cases),
    ("tensor::select", Kernels, select::cases),
    ("tensor::strided", Kernels, strided::cases),
    ("tensor::unary", KernelsAndTwin, unary::cases),
];
