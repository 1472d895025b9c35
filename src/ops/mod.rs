//! The operations, by family. An op's file holds its parameters, its declaration, its GPU function, its CPU twin and its tests.

pub mod bitnet;
pub(crate) mod half_subnormals;
pub mod measure;
mod rms;
pub mod transformer;

use crate::Kernel;

/// Every kernel of the crate, by family. Contract, translation and parity tests walk it.
pub static CATALOG: &[&[&Kernel]] = &[bitnet::KERNELS, transformer::KERNELS, measure::KERNELS, &[&half_subnormals::HALF_SUBNORMALS]];

/// All of [`CATALOG`], family after family.
pub fn catalog() -> impl Iterator<Item = &'static Kernel> {
    CATALOG.iter().copied().flatten().copied()
}
