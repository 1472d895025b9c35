//! Opening a device and preparing it.

#[cfg(test)]
pub(crate) mod noop;
pub(crate) mod open;
pub(crate) mod probes;
pub(crate) mod tuning_file;
#[cfg(feature = "models")]
pub(crate) mod warm_up;
