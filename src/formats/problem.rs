//! What is wrong with a file, said before its path is known.

use crate::error::Error;
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
        match self.map(printable) {
            Self::Damaged(message) => Error::Format { path, message },
            Self::Unsupported(message) => Error::Unsupported { path, message },
        }
    }
}

/// The longest message, in characters: names in files may be of any length.
const MOST_MESSAGE: usize = 2000;

/// A message that a terminal can show: names in files may have control characters, which it would obey.
pub(super) fn printable(message: String) -> String {
    if message.len() <= MOST_MESSAGE && !message.contains(char::is_control) {
        return message;
    }
    let shown = message.chars().take(MOST_MESSAGE).flat_map(|c| {
        let escaped = c.is_control().then(|| c.escape_default());
        escaped.into_iter().flatten().chain((!c.is_control()).then_some(c))
    });
    let shown: String = shown.collect();
    if message.chars().count() > MOST_MESSAGE { shown + " .." } else { shown }
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
            Self::Damaged(message) | Self::Unsupported(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_command_no_terminal_and_have_an_end() {
        let error = Problem::Damaged(format!("`{}\u{1b}[2J` and é", "\n")).at("file");
        assert_eq!(error.to_string(), "file: `\\n\\u{1b}[2J` and é");
        let long = Problem::Unsupported("é".repeat(200_000)).at("file").to_string();
        assert_eq!(long.chars().count(), "file: ".len() + MOST_MESSAGE + " ..".len());
    }
}
