//! What is wrong with a file, said before its path is known.

use crate::error::{Error, printable};
use std::{fmt, path::Path};

/// Why a file cannot be read as a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// It is damaged, hostile, or not what it should be.
    Damaged(String),
    /// It is sound, and needs what this crate does not do.
    Unsupported(String),
}

impl Problem {
    /// The same, said with more words.
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

/// [`Problem::Unsupported`].
pub(super) fn unsupported<T>(message: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Unsupported(message.into()))
}

impl<S: Into<String>> From<S> for Problem {
    fn from(message: S) -> Self {
        Self::Damaged(message.into())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(message) | Self::Unsupported(message) => f.write_str(&printable(message)),
        }
    }
}

impl std::error::Error for Problem {}
