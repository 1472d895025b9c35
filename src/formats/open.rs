//! Finding the reader that a path needs.

use super::{
    checkpoint::Checkpoint, file::InputFile, gguf::model::Gguf, model_file::ModelFile,
    prepacked::Prepacked, problem::Problem,
};
use crate::{error::Result, limits::files::MOST_JSON};
use std::path::{Path, PathBuf};

/// How a model is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A directory as transformers writes it; [`Checkpoint::open`] reads it.
    Directory(PathBuf),
    /// A GGUF file; [`Gguf::open`] reads it.
    Gguf,
    /// A safetensors file, a prepacked model file:
    /// [`ModelBuilder::write_prepacked`](crate::model::ModelBuilder::write_prepacked) writes it; [`open`] reads it.
    Prepacked,
}

/// What is at a path: a model directory (given itself, or as the config.json in it), a GGUF file or
/// a safetensors file, recognised by their first bytes.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io); [`Error::Format`](crate::Error::Format) for anything else.
pub fn kind(path: impl AsRef<Path>) -> Result<Kind> {
    let path = path.as_ref();
    if path.is_dir() {
        return Ok(Kind::Directory(path.to_owned()));
    }
    match (path.file_name(), path.parent()) {
        (Some(name), Some(directory)) if name == "config.json" => {
            Ok(Kind::Directory(directory.to_owned()))
        }
        _ => {
            let file = InputFile::open(path)?;
            let start = file.read(0, file.len().min(9))?;
            match start.split_first_chunk() {
                _ if start.starts_with(b"GGUF") => Ok(Kind::Gguf),
                // A header of JSON, after its length.
                Some((&length, b"{")) if u64::from_le_bytes(length) <= MOST_JSON as u64 => Ok(Kind::Prepacked),
                _ => {
                    Err(Problem::from("is not a model: a directory with a config.json, a GGUF file or a prepacked model file is needed")
                        .at(path))
                }
            }
        }
    }
}

/// Opens a model in any supported format.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io), [`Error::Format`](crate::Error::Format),
/// [`Error::Unsupported`](crate::Error::Unsupported).
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn ModelFile>> {
    Ok(match kind(path.as_ref())? {
        Kind::Directory(directory) => Box::new(Checkpoint::open(directory)?),
        Kind::Gguf => Box::new(Gguf::open(path)?),
        Kind::Prepacked => Box::new(Prepacked::open(path)?),
    })
}
