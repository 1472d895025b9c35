//! Between host memory and the device.

pub(crate) mod mapping;
pub(crate) mod readback;
pub(crate) mod submit;
pub(crate) mod upload;
