//! Injected faults: what is lost, what is still valid, and how work continues.

mod files;
mod hangs;
mod lost;
mod memory;

use bitnet_wgpu::{Context, model::Model};
use std::time::Duration;
use support::{block_on, real_model};

/// How long a device hangs here.
const HUNG: Duration = Duration::from_secs(2);

/// The model on a device of its own.
fn fresh() -> Model {
    Model::builder(real_model()).device(&block_on(Context::new()).unwrap()).build().unwrap()
}
