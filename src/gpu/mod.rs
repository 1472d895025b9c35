//! The device and what every op needs of it: buffers, pipelines, recordings, reads, times. Knows
//! kernels, and no op.

pub(crate) mod adapters;
pub(crate) mod cache;
pub(crate) mod capabilities;
pub(crate) mod capture;
pub(crate) mod commands;
pub(crate) mod completion_check;
pub(crate) mod context;
pub(crate) mod encoder;
pub(crate) mod environment;
pub(crate) mod health;
#[cfg_attr(not(feature = "models"), allow(dead_code, reason = "only models have it"))]
pub(crate) mod hosted;
pub(crate) mod metal;
pub(crate) mod msl;
#[cfg(test)]
pub(crate) mod noop;
pub(crate) mod open;
pub(crate) mod out;
pub(crate) mod pipeline;
pub(crate) mod pipelines;
pub(crate) mod plan;
pub(crate) mod poll;
pub(crate) mod pool;
pub(crate) mod probes;
pub(crate) mod profile;
pub(crate) mod readback;
pub(crate) mod recording;
pub(crate) mod scopes;
pub(crate) mod submissions;
pub(crate) mod submit;
pub(crate) mod sync;
pub(crate) mod tensor;
pub(crate) mod trace;
pub(crate) mod tuning;
pub(crate) mod upload;
#[cfg(feature = "models")]
pub(crate) mod warm_up;
