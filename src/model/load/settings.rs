//! What a model is loaded with, kept for loading it again.

use crate::{
    cpu::threads::Threads,
    error::{Error, Result},
    formats::ReadOptions,
    gpu::context::Context,
    model::engine::{device::check_split, offload::Offload},
};
use std::path::PathBuf;

/// Settings of a [`ModelBuilder`](crate::model::ModelBuilder), which documents them.
#[derive(Clone, Default)]
pub(crate) struct LoadSettings {
    pub int8_head: bool,
    pub f16_attention: bool,
    pub ignore_unused: bool,
    pub offload: Offload,
    pub split: Vec<usize>,
    pub threads: Option<usize>,
    pub no_text_check: bool,
}

impl LoadSettings {
    /// Checks the settings for a model on these contexts, none for the CPU.
    pub fn check(&self, contexts: &[Context], layers: usize) -> Result<()> {
        self.threads.map_or(Ok(()), Threads::check)?;
        self.offload.check(layers)?;
        check_split(contexts, layers, &self.split)?;
        if contexts.len() > 1 && self.offload != Offload::None {
            return Err(Error::Invalid {
                op: "split",
                what: "layers are split over devices or kept in host memory, not both".into(),
            });
        }
        Ok(())
    }

    /// Returns the settings for another number of devices.
    pub fn on(&self, devices: usize) -> Self {
        let mut settings = self.clone();
        if settings.split.len() != devices {
            settings.split.clear();
        }
        settings
    }
}

/// The files of a loaded model, and how it was loaded.
#[derive(Clone)]
pub(crate) struct Origin {
    pub path: PathBuf,
    pub read: ReadOptions,
    pub settings: LoadSettings,
}
