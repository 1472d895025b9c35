//! Ops on tensors of any meaning.

mod mul;
mod pad_rows;
mod relu2;

use super::{By::Kernels, Family};

pub const OPS: Family =
    &[("tensor::mul", Kernels, mul::cases), ("tensor::pad_rows", Kernels, pad_rows::cases), ("tensor::relu2", Kernels, relu2::cases)];
