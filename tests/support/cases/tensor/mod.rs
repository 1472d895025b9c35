//! Ops on tensors of any meaning.

mod mul;
mod pad_rows;
mod relu2;

use super::Family;

pub const OPS: Family = &[("tensor::mul", mul::cases), ("tensor::pad_rows", pad_rows::cases), ("tensor::relu2", relu2::cases)];
