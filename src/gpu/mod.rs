//! Types around recorded work: what a dispatch binds ([`Bind`]) and how large it is ([`Extent`]), work
//! that was submitted ([`Submission`]), and reads in chunks ([`Chunks`]).

pub(crate) mod capabilities;
pub(crate) mod compile;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod encoder;
pub(crate) mod execute;
#[cfg_attr(not(feature = "models"), allow(dead_code, reason = "only models have it"))]
pub(crate) mod host_staging;
pub(crate) mod memory;
pub(crate) mod observe;
pub(crate) mod out;
pub(crate) mod recording;
pub(crate) mod setup;
pub(crate) mod tensor;
mod tensor_map;
pub(crate) mod trace;
pub(crate) mod transfer;

pub use recording::{Extent, Submission};
pub use tensor::{Bind, Chunks};
