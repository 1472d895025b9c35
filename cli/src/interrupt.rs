//! Interrupts (Ctrl-C) that stop a piece of work and not the program.

use anyhow::{Context as _, Result};
#[cfg(feature = "train")]
use std::{
    process::exit,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use tokio::runtime::{Builder, Runtime};

/// Returns a runtime of this thread, which receives signals.
pub fn runtime() -> Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("starting to wait for interrupts")
}

/// Waits for the next interrupt. Once this was polled, interrupts no longer end the program.
pub async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        // The signal is not available.
        std::future::pending().await
    }
}

/// Exit status of a program that SIGINT ended, as shells have it.
#[cfg(feature = "train")]
const INTERRUPTED: i32 = 130;

/// Returns a flag that the next interrupt sets, for work that is not asynchronous. An interrupt that
/// finds it set ends the program.
#[cfg(feature = "train")]
pub fn flag() -> Result<Arc<AtomicBool>> {
    let (runtime, flag) = (runtime()?, Arc::new(AtomicBool::new(false)));
    let set = flag.clone();
    thread::Builder::new().name("interrupts".into()).spawn(move || {
        loop {
            runtime.block_on(interrupt());
            if set.swap(true, Ordering::Relaxed) {
                exit(INTERRUPTED);
            }
        }
    })?;
    Ok(flag)
}
