//! The cases of every op: a file for each file of `src/ops`.

mod bitnet;
mod linalg;
mod measure;
mod optimizer;
mod recurrent;
mod tensor;
mod transformer;

use crate::Case;
use std::sync::{LazyLock, OnceLock};

/// The ops of a family: the names that trials have, by what they are tried, and their cases.
type Family = &'static [(&'static str, By, fn() -> Vec<Case>)];

/// By what an op is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Its kernels: the CPU reference is the oracle, or there is none.
    Kernels,
    /// Its kernels and its CPU reference: the oracle is in `f64`, with bounds for both.
    KernelsAndReference,
    /// As `Kernels`, of an op whose kernels are all in WGSL only.
    Wgsl,
    /// As `KernelsAndReference`, of such an op.
    WgslAndReference,
    /// Its kernels, but not on an emulated GPU.
    Device,
    /// Its kernels for tensor cores alone, and those in Metal, which has such: without them, it is
    /// another op.
    TensorCores,
}

impl By {
    /// Returns whether it has no hand-written Metal source.
    pub fn is_wgsl_only(self) -> bool {
        matches!(self, Self::Wgsl | Self::WgslAndReference)
    }
}

/// An op and its cases.
pub struct Op {
    /// Its family and name.
    pub name: &'static str,
    /// By what it is tried.
    pub by: By,
    make: fn() -> Vec<Case>,
    made: OnceLock<Vec<Case>>,
}

impl Op {
    /// Its cases, made when they are first asked for and kept.
    pub fn cases(&self) -> &[Case] {
        self.made.get_or_init(self.make)
    }

    /// Returns whether it has kernels for tensor cores.
    pub fn on_tensor_cores(&self) -> bool {
        self.by == By::TensorCores
            || [
                "bitnet::bitlinear",
                "bitnet::bitlinear_add",
                "bitnet::bitlinear_groups",
                "bitnet::bitlinear_block_float",
                "bitnet::bitlinear_experts",
                "bitnet::bitlinear_with",
                "tensor::matmul",
                "tensor::matmul_with",
                "transformer::dense_int8",
                "matrix_places",
            ]
            .contains(&self.name)
    }
}

/// Every op of the crate.
pub fn ops() -> &'static [Op] {
    static OPS: LazyLock<Vec<Op>> = LazyLock::new(|| {
        let all = [
            bitnet::OPS,
            linalg::OPS,
            tensor::OPS,
            transformer::OPS,
            recurrent::OPS,
            optimizer::OPS,
            measure::OPS,
        ]
        .concat();
        all.into_iter()
            .map(|(name, by, make)| Op { name, by, make, made: OnceLock::new() })
            .collect()
    });
    &OPS
}
