//! Which reader a path needs.

use super::{Checkpoint, Gguf, ModelFile, mapped};
use crate::{Error, Result};
use std::path::Path;

/// Opens a model: a directory as transformers writes it (or the config.json in it), or a GGUF file, by its first bytes.
///
/// # Errors
/// [`Error::Io`], [`Error::Format`].
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn ModelFile>> {
    let path = path.as_ref();
    if path.is_dir() {
        return Ok(Box::new(Checkpoint::open(path)?));
    }
    match (path.file_name(), path.parent()) {
        (Some(name), Some(directory)) if name == "config.json" => Ok(Box::new(Checkpoint::open(directory)?)),
        _ if mapped::map(path)?.starts_with(b"GGUF") => Ok(Box::new(Gguf::open(path)?)),
        _ => {
            let message = "is no model: a directory with a config.json or a GGUF file is needed".into();
            Err(Error::Format { path: path.to_owned(), message })
        }
    }
}
