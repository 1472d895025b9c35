//! Times of kernels, numbers that they log, and the state of a GPU.

pub(crate) mod health;
pub(crate) mod profile;
pub(crate) mod shader_log;
