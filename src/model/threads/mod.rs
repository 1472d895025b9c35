//! Threads that compute for futures, and the channels by which their results come back.

pub(super) mod background;
pub(super) mod unbounded;
pub(super) mod workers;
