//! Errors in a file, before its path is known.

use crate::{error::Error, files::display::printable};
use std::{fmt, path::Path};

/// Why a file cannot be read as a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// It is damaged, hostile, or not what it should be.
    Damaged(String),
    /// It is sound, and needs what this crate does not do.
    Unsupported(String),
}

impl FormatError {
    /// Replaces the message.
    pub(super) fn map(self, words: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Damaged(message) => Self::Damaged(words(message)),
            Self::Unsupported(message) => Self::Unsupported(words(message)),
        }
    }

    /// The error about the file at `path`: [`Error::Format`] or [`Error::Unsupported`].
    pub fn at(self, path: impl AsRef<Path>) -> Error {
        let path = path.as_ref().to_owned();
        match self {
            Self::Damaged(message) => Error::Format { path, message },
            Self::Unsupported(message) => Error::Unsupported { path, message },
        }
    }
}

/// [`FormatError::Unsupported`].
pub(super) fn unsupported<T>(message: impl Into<String>) -> Result<T, FormatError> {
    Err(FormatError::Unsupported(message.into()))
}

/// A sound matrix of 2-bit codes that is not ternary, since `count` of its weights have a fourth
/// value: `what` is wrong with it where it should be.
pub(super) fn with_share(what: String, count: usize, weights: usize) -> FormatError {
    let share = 100.0 * count as f64 / weights.max(1) as f64;
    let place = "such a matrix is supported as an embedding or a head, and not as a linear layer";
    FormatError::Unsupported(format!(
        "{what}, as {count} of its {weights} weights are ({share:.2} %); {place}"
    ))
}

impl<S: Into<String>> From<S> for FormatError {
    fn from(message: S) -> Self {
        Self::Damaged(message.into())
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(message) | Self::Unsupported(message) => f.write_str(&printable(message)),
        }
    }
}

impl std::error::Error for FormatError {}
