//! What a model is loaded with, kept for loading it again.

use crate::{
    cpu::threads::Threads,
    error::{Error, Result},
    formats::{ModelConfig, ReadOptions},
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
    pub fn check(&self, contexts: &[Context], config: &ModelConfig) -> Result<()> {
        let layers = config.layers;
        self.threads.map_or(Ok(()), Threads::check)?;
        self.offload.check(layers)?;
        check_split(contexts, layers, &self.split)?;
        if contexts.len() > 1 && self.offload != Offload::None {
            return Err(Error::Invalid {
                op: "split",
                what: "layers are split over devices or kept in host memory, not both".into(),
            });
        }
        if config.hybrid.is_some() && !contexts.is_empty() {
            self.check_recurrent(contexts)?;
        }
        Ok(())
    }

    /// Refuses what is not supported of a model with recurrent layers on GPUs.
    fn check_recurrent(&self, contexts: &[Context]) -> Result<()> {
        let (op, how) = match contexts {
            [_] if self.offload == Offload::None => return Ok(()),
            [_] => ("offload", "kept in host memory"),
            _ => ("split", "split over devices"),
        };
        let what =
            format!("layers of a model with recurrent ones (Gated DeltaNet) cannot be {how}");
        Err(Error::Invalid { op, what })
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
