//! Locks, channels and threads as pool, pipelines and poll thread use them: std's.
//! tests/interleavings.rs compiles these files with those of the crate shuttle, which tries the
//! orders in which threads may take their steps.

pub use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc},
    thread,
};
