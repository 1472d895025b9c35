//! What is compared: an op and its gradients a case.

mod bitnet;
mod linalg;
mod optimizer;
mod tensor;
mod transformer;

use super::golden::{Case, Out};
use bitnet_wgpu::Result;

/// Of masks of dropout, and of stochastic rounding.
const SEED: u64 = 5 << 32 | 7;

/// What records a case and gives its outputs, in the order of the golden.
pub type Run = fn(&mut Case) -> Result<Vec<Out>>;

/// Returns the cases of all families, by the names of the golden.
pub fn cases() -> impl Iterator<Item = (&'static str, Run)> {
    [bitnet::CASES, linalg::CASES, optimizer::CASES, tensor::CASES, transformer::CASES]
        .into_iter()
        .flatten()
        .copied()
}
