//! What computes a model: the CPU or GPUs, behind one interface.

pub(super) mod config;
pub(super) mod cpu;
mod cpu_experts;
pub(super) mod device;
pub(super) mod gpu;
pub(crate) mod interface;
pub(super) mod layers;
pub(super) mod offload;
pub(super) mod sampling_plan;
