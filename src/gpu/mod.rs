//! The device and what every op needs of it: buffers, pipelines, recordings, reads, times. Knows
//! kernels, and no op.

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
pub(crate) mod trace;
pub(crate) mod transfer;
