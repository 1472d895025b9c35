//! Continuous batching.

pub(super) mod batch_generation;
pub(super) mod continuous;
pub(super) mod scheduler;
