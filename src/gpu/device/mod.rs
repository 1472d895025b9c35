//! What a device is, before anything runs on it.

pub(crate) mod adapter;
pub(crate) mod adapters;
pub(crate) mod capture;
pub(crate) mod context_options;
pub(crate) mod environment;
pub(crate) mod metal;
pub(crate) mod msl;
pub(crate) mod poll;
pub(crate) mod scopes;
pub(crate) mod sync;
