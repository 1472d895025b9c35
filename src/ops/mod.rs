//! The operations, by family. An op's file holds its parameters, its declarations, its value and
//! its CPU reference.

/// A family's ops: a module each, whose public items are the family's, and whose `KERNELS` are in
/// the catalog; then those that have CPU references, in a module `reference`, and those whose
/// references models on the CPU run too, in a module `host`. (The modules are declared beside the
/// list, since rustfmt does not look into macros.)
macro_rules! family {
    (
        $($(#[$feature:meta])? $op:ident),+ $(,)?;
        reference: $($(#[$on:meta])? $with:ident),* $(,)?
        $(; host: $($host:ident),* $(,)?)?
    ) => {
        // Some have kernels alone.
        $($(#[$feature])? #[allow(unused_imports)] pub use $op::*;)+

        $(
            /// The ops of the family that models on the CPU run too.
            pub(crate) mod host {
                $(#[allow(unused_imports, reason = "some are for the references alone")] pub use super::$host::host::*;)*
            }
        )?

        /// The CPU references of the family.
        #[cfg(any(test, feature = "reference"))]
        pub(crate) mod reference {
            $($(pub use super::$host::host::*;)*)?
            $($(#[$on])? pub use super::$with::reference::*;)*
        }

        pub(super) static KERNELS: &[&[&$crate::kernel::declaration::Kernel]] =
            &[$($(#[$feature])? $op::KERNELS),+];
    };
}

pub mod bitnet;
pub(crate) mod exp;
mod forward;
mod frames;
#[cfg(feature = "linalg")]
pub mod linalg;
pub mod measure;
pub(crate) mod op_tables;
#[cfg(feature = "train")]
pub mod optimizer;
mod philox;
mod race;
pub mod recurrent;
pub(crate) mod reduce;
pub(crate) mod rms;
pub mod tensor;
pub mod transformer;

/// Ops on the CPU that models on the CPU share with the CPU references.
pub(crate) mod host {
    pub use super::{bitnet::host::*, recurrent::host::*, tensor::host::*, transformer::host::*};
}

/// CPU references of the ops (feature `reference`): slow, and exact where the ops are. Tests
/// compare every kernel with them. [`cpu`](crate::cpu) has fast ops.
#[cfg(any(test, feature = "reference"))]
pub mod reference {
    #[cfg(feature = "linalg")]
    pub use super::linalg::reference::*;
    #[cfg(feature = "train")]
    pub use super::optimizer::reference::*;
    pub use super::{
        bitnet::reference::*, recurrent::reference::*, tensor::reference::*,
        transformer::reference::*,
    };
}

use crate::{
    gpu::{execute::completion_check, setup::probes},
    kernel::declaration::Kernel,
};

/// Returns every kernel of the features that are on, family after family. Contract, translation
/// and parity tests walk it.
pub fn catalog() -> impl Iterator<Item = &'static Kernel> {
    static FAMILIES: &[&[&[&Kernel]]] = &[
        bitnet::KERNELS,
        #[cfg(feature = "linalg")]
        linalg::KERNELS,
        tensor::KERNELS,
        transformer::KERNELS,
        recurrent::KERNELS,
        #[cfg(feature = "train")]
        optimizer::KERNELS,
        &[measure::KERNELS],
        &[probes::KERNELS, completion_check::KERNELS],
    ];
    FAMILIES.iter().copied().flatten().copied().flatten().copied()
}
