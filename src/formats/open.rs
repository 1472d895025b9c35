//! Which reader a path needs.

use super::{Checkpoint, ModelFile};
use crate::{Error, Result};
use std::path::Path;

/// Opens a model: a directory as transformers writes it (or the config.json in it).
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
        _ => {
            let found = std::fs::metadata(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
            let message = format!("is no model ({} bytes): a directory with a config.json is needed", found.len());
            Err(Error::Format { path: path.to_owned(), message })
        }
    }
}
