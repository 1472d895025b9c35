//! Interrupts (Ctrl-C) that stop a piece of work and not the program.

use anyhow::{Context as _, Result};
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
