//! Errors of training.

use bitnet_wgpu::internals::files::display;
use std::path::PathBuf;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in training.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a variant's text names its fields")]
pub enum Error {
    /// An error of the library: a file, the device, memory.
    #[error(transparent)]
    Library(#[from] bitnet_wgpu::Error),
    /// A setting that cannot work.
    #[error("{name} is {value}; {accepted}")]
    Setting { name: &'static str, value: String, accepted: String },
    /// A model with a step that cannot be trained.
    #[error(
        "model_type `{architecture}`: {step} cannot be trained; models of bitnet, llama and qwen3 without it can"
    )]
    Unsupported { architecture: String, step: String },
    /// A line, or a whole file, that is not text.
    #[error("{}{}: {problem}", display(path), line.map_or_else(String::new, |line| format!(":{line}")))]
    Data { path: PathBuf, line: Option<usize>, problem: String },
    /// A text that is too short for its windows.
    #[error("the text has {tokens} tokens; {needed} are needed: {what}")]
    TooShort { tokens: usize, needed: usize, what: String },
    /// Files of a checkpoint that do not fit together, or do not fit the run.
    #[error("{}: {problem}", display(path))]
    Checkpoint { path: PathBuf, problem: String },
    /// A teacher from which the student cannot learn.
    #[error("the teacher {} {problem}", display(path))]
    Teacher { path: PathBuf, problem: String },
    /// A run that does not fit into the memory limit.
    #[error(
        "the run needs {weights} bytes for weights, gradients and the optimizer's means, and about {activations} for activations; the memory limit is {limit}: {advice}"
    )]
    Memory { weights: u64, activations: u64, limit: u64, advice: &'static str },
    /// A folder that another run writes to.
    #[error(
        "{}: another run writes to it; wait for its end, or choose another folder",
        display(path)
    )]
    Locked { path: PathBuf },
    /// Steps without a finite loss or gradient, one after another.
    #[error(
        "{steps} steps in a row had a loss or a gradient that is not finite; {}",
        last.as_ref().map_or_else(
            || "there is no checkpoint to resume from; a lower learning rate may help".to_owned(),
            |last| format!("the last good checkpoint is {}; train anew with a lower learning rate, from its weights if all weights are trained", display(last))
        )
    )]
    Diverged { steps: u32, last: Option<PathBuf> },
}

impl Error {
    pub(crate) fn setting(
        name: &'static str,
        value: impl std::fmt::Display,
        accepted: impl Into<String>,
    ) -> Self {
        Self::Setting { name, value: value.to_string(), accepted: accepted.into() }
    }
}
