//! The model on a GPU: its weights and the recording of its operations, and sessions that submit them.

mod graph;
mod linear;
mod load;
mod offload;
mod session;
mod split;

pub(super) use graph::GpuModel;
pub(super) use split::SplitModel;
