//! Ternary matrices: their layout in memory, on the host and on the GPU.

pub(crate) mod interleaved;
pub(crate) mod layout;
pub(crate) mod matrix;
pub(crate) mod packed;
pub(crate) mod scales;
