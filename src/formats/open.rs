//! Finding the reader that a path needs.

use super::{
    checkpoint::Checkpoint, file::InputFile, format_error::FormatError, gguf::model::GgufModel,
    model_file::ModelFile, prepacked::Prepacked, read_options::ReadOptions,
};
use crate::{error::Result, limits::files::MOST_JSON};
use std::path::{Path, PathBuf};

/// Format of a stored model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelFormat {
    /// A directory as transformers writes it; [`Checkpoint::open`] reads it.
    Directory(PathBuf),
    /// A GGUF file. [`open`] reads the model in it, [`GgufFile`](super::GgufFile) its tensors.
    Gguf,
    /// A safetensors file, a prepacked model file:
    /// [`ModelBuilder::write_prepacked`](crate::model::ModelBuilder::write_prepacked) writes it; [`open`] reads it.
    Prepacked,
}

/// Returns the format of the model at a path: a directory (or the config.json in it), a GGUF file or
/// a prepacked model file. Files are recognized by their first bytes.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io); [`Error::Format`](crate::Error::Format) for anything else.
pub fn identify(path: impl AsRef<Path>) -> Result<ModelFormat> {
    let path = path.as_ref();
    if path.is_dir() {
        return Ok(ModelFormat::Directory(path.to_owned()));
    }
    match (path.file_name(), path.parent()) {
        (Some(name), Some(directory)) if name == "config.json" => {
            Ok(ModelFormat::Directory(directory.to_owned()))
        }
        _ => {
            let file = InputFile::open(path)?;
            let start = file.read(0, file.len().min(9))?;
            match start.split_first_chunk() {
                _ if start.starts_with(b"GGUF") => Ok(ModelFormat::Gguf),
                // A header of JSON, after its length.
                Some((&length, b"{")) if u64::from_le_bytes(length) <= MOST_JSON as u64 => Ok(ModelFormat::Prepacked),
                _ => {
                    Err(FormatError::from("is not a model: a directory with a config.json, a GGUF file or a prepacked model file is needed")
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
    open_with(path, ReadOptions::default())
}

/// [`open`] with options for what the files do not say.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: impl AsRef<Path>, read: ReadOptions) -> Result<Box<dyn ModelFile>> {
    Ok(match identify(path.as_ref())? {
        ModelFormat::Directory(directory) => {
            Box::new(Checkpoint::open(directory)?.with_options(read))
        }
        ModelFormat::Gguf => Box::new(GgufModel::open(path)?.with_options(read)),
        ModelFormat::Prepacked => Box::new(Prepacked::open(path)?.with_options(read)),
    })
}
