//! Buffers, and how many bytes they take.

pub(crate) mod plan;
pub(crate) mod pool;
