//! The model on a GPU: its weights and the recording of its operations, and sessions that submit them.

mod graph;
mod load;
mod offload;
mod session;

pub(super) use graph::GpuModel;
