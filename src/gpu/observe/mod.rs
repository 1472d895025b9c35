//! Times of kernels, and the state of a GPU.

pub(crate) mod health;
pub(crate) mod profile;
