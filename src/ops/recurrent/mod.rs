//! Ops of recurrent layers: gated DeltaNet.

mod delta;
mod expect;
mod output_gate;
mod short_conv;

pub(crate) use delta::DeltaShape;

/// The ops that models on the CPU run.
pub(crate) mod host {
    pub use super::{delta::host::*, output_gate::host::*, short_conv::host::*};
}
