//! Ops on tensors of any meaning: elementwise, broadcast, forward and backward.

pub(crate) mod activations;
pub(crate) mod binary;
pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod pad_rows;
pub(crate) mod select;
pub(crate) mod strided;
pub(crate) mod unary;

family!(activations, binary, compare, copy, pad_rows, select, strided, unary);
