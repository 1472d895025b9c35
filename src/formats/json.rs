//! JSON files of a model directory.

use super::mapped;
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::Path;

pub fn read_json(path: &Path) -> Result<Value> {
    let file = mapped::map(path)?;
    serde_json::from_slice(&file).map_err(|e| Error::Format { path: path.to_owned(), message: e.to_string() })
}
