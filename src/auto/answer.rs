//! What calls return: a result, and where it was computed.

use crate::error::Error;
use std::{fmt, sync::Arc};

/// A side that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The CPU.
    Cpu,
    /// The GPU.
    Gpu,
}

/// What a call does if the GPU fails: by a lost device, too little memory, or a kernel that it
/// cannot run. (A wrong argument is an error of either side.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GpuFailure {
    /// It returns the error.
    #[default]
    Error,
    /// It computes on the CPU. [`Answer::failure`] has the error, and the log a warning. After a
    /// lost device, calls do not try the GPU again.
    ComputeOnCpu,
}

/// Why a call ran where it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// Calls of this size are faster there.
    Faster,
    /// This call ran on both sides, and was faster there.
    Measured,
    /// Its operands are there.
    Placed,
    /// There is no GPU.
    NoGpu,
    /// The caller says so ([`Auto::always`](super::Auto::always)).
    Always,
    /// The GPU failed ([`GpuFailure::ComputeOnCpu`]).
    Failed,
}

/// Where a call ran. As a text, a sentence for people.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Ran {
    /// The op's name.
    pub op: &'static str,
    /// Where it ran.
    pub on: Target,
    /// Why there.
    pub why: Why,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = if self.on == Target::Cpu { "CPU" } else { "GPU" };
        let why = match self.why {
            Why::Faster => "which is faster",
            Why::Measured => "which was faster than the other side",
            Why::Placed => "where its operands are",
            Why::NoGpu => "since there is no GPU",
            Why::Always => "as the caller says",
            Why::Failed => "since the GPU failed",
        };
        write!(f, "{} on the {on}, {why}", self.op)
    }
}

/// What a call returns.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// The result.
    pub value: T,
    /// Where it was computed, and why.
    pub ran: Ran,
    /// The GPU's error, where the CPU computed in its place.
    pub failure: Option<Arc<Error>>,
}
