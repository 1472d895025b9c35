//! Errors of the export.

use bitnet_wgpu::internals::files::display;
use std::path::PathBuf;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in writing or running a package.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a variant's text names its fields")]
pub enum Error {
    /// An error of the library: a file or a tensor of the model.
    #[error(transparent)]
    Library(#[from] bitnet_wgpu::Error),
    /// A model that needs what an exported program does not have.
    #[error(
        "model_type `{architecture}`: {what} cannot be exported to Core ML; models of bitnet, llama and qwen3 without it can"
    )]
    Unsupported { architecture: String, what: String },
    /// A setting that cannot work.
    #[error("{name} is {value}; {accepted}")]
    Setting { name: &'static str, value: usize, accepted: String },
    /// An output that is there, without leave to overwrite it.
    #[error("{}: exists already", display(path))]
    Exists { path: PathBuf },
    /// An output that is there and is no package: it is not removed.
    #[error("{}: is not a Core ML package, and is not overwritten", display(path))]
    NoPackage { path: PathBuf },
    /// A file that cannot be written.
    #[error("{}: {source}", display(path))]
    Io { path: PathBuf, source: std::io::Error },
    /// What Core ML reports.
    #[error("Core ML: {0}")]
    CoreMl(String),
}

/// Adds the path to an error of the system.
pub(crate) fn at<T>(path: &std::path::Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Io { path: path.to_owned(), source })
}
