//! From a kernel to a compiled pipeline.

pub(crate) mod cache;
pub(crate) mod pipeline;
pub(crate) mod pipelines;
