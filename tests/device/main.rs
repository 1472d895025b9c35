//! Contexts, tensors, recordings and submissions on the device under test, and ops beside other
//! libraries.

mod adapters;
mod auto;
mod budgets;
mod caches;
#[cfg(target_os = "linux")]
mod capture;
mod linalg;
mod mapping;
mod memory;
#[cfg(target_os = "linux")]
mod msl_cuda;
mod offload;
mod own_device;
mod recovery;
mod refusals;
mod rope;
mod run_time_kernels;
mod runtime;
mod shader_log;
mod spans;
mod threads;
mod tiles;
mod torch;
mod trace;
mod transfers;
