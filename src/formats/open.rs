//! Finding the reader that a path needs.

use super::{checkpoint::Checkpoint, file::InputFile, gguf::model::Gguf, model_file::ModelFile, problem::Problem};
use crate::error::Result;
use std::path::{Path, PathBuf};

/// How a model is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A directory as transformers writes it; [`Checkpoint::open`] reads it.
    Directory(PathBuf),
    /// A GGUF file; [`Gguf::open`] reads it.
    Gguf,
}

/// What is at a path: a model directory (given itself, or as the config.json in it), or a GGUF file, recognised by its first bytes.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io); [`Error::Format`](crate::Error::Format) for anything else.
pub fn kind(path: impl AsRef<Path>) -> Result<Kind> {
    let path = path.as_ref();
    if path.is_dir() {
        return Ok(Kind::Directory(path.to_owned()));
    }
    match (path.file_name(), path.parent()) {
        (Some(name), Some(directory)) if name == "config.json" => Ok(Kind::Directory(directory.to_owned())),
        _ => {
            let file = InputFile::open(path)?;
            if file.read(0, file.len().min(4))? == b"GGUF" {
                return Ok(Kind::Gguf);
            }
            Err(Problem::from("is not a model: a directory with a config.json or a GGUF file is needed").at(path))
        }
    }
}

/// Opens a model in any supported format.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io), [`Error::Format`](crate::Error::Format), [`Error::Unsupported`](crate::Error::Unsupported).
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn ModelFile>> {
    Ok(match kind(path.as_ref())? {
        Kind::Directory(directory) => Box::new(Checkpoint::open(directory)?),
        Kind::Gguf => Box::new(Gguf::open(path)?),
    })
}
