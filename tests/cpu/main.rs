//! What holds without a GPU: the layers of the code, the declarations of kernels and their sources,
//! CPU references, a whole model on the CPU.

mod contract;
mod hybrid;
mod layers;
#[cfg(unix)]
mod mac_verify;
mod model;
#[cfg(target_os = "linux")]
mod msl_front;
mod mutants;
mod pages;
mod public_api;
mod reference;
mod roofline;
mod translation;
mod unsafe_code;
