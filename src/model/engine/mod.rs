//! What computes a model: the CPU or GPUs, behind one interface.

pub(super) mod config;
pub(super) mod cpu;
mod cpu_experts;
mod delta_cpu;
pub(super) mod device;
pub(super) mod gpu;
mod hybrid;
pub(crate) mod interface;
pub(super) mod layers;
pub(super) mod offload;
pub(super) mod sampling_plan;
