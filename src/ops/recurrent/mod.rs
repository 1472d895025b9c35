//! Ops of recurrent layers: gated DeltaNet.

mod delta;
mod output_gate;
mod short_conv;

pub(crate) use delta::DeltaShape;

/// The ops that models on the CPU run.
pub(crate) mod host {
    pub use super::{delta::host::*, output_gate::host::*, short_conv::host::*};
}

/// Checks that there are as many numbers as an op takes.
fn expect(op: &'static str, what: &str, found: usize, expected: usize) -> crate::error::Result<()> {
    if found == expected {
        return Ok(());
    }
    let what = format!("{what} of {found} numbers; {expected} are needed");
    Err(crate::error::Error::Invalid { op, what })
}
