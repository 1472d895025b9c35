//! The operations, by family. An op's file holds its parameters, its declaration, its GPU function and its CPU twin.

pub mod bitnet;
mod frames;
pub mod measure;
mod rms;
pub mod tensor;
pub mod transformer;

use crate::{gpu::probes, kernel::declaration::Kernel};

/// Every kernel of the crate, by family. Contract, translation and parity tests walk it.
pub static CATALOG: &[&[&Kernel]] = &[bitnet::KERNELS, tensor::KERNELS, transformer::KERNELS, measure::KERNELS, probes::KERNELS];

/// All of [`CATALOG`], family after family.
pub fn catalog() -> impl Iterator<Item = &'static Kernel> {
    CATALOG.iter().copied().flatten().copied()
}
