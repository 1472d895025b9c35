//! Ops on tensors of any meaning: elementwise, broadcast, forward and backward.

pub(crate) mod mul;
pub(crate) mod pad_rows;
pub(crate) mod relu2;
pub(crate) mod sigmoid;
pub(crate) mod silu;

family!(mul, pad_rows, relu2, sigmoid, silu);
