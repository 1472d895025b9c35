//! Weights in memory, on the host and on the GPU: ternary and dense.

pub(crate) mod dense;
pub(crate) mod ternary;
