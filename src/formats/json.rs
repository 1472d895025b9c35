//! JSON files of a model directory, and what is read of them.

use super::{file, format_error::FormatError};
use crate::{
    error::Result,
    limits::files::{MOST_JSON, MOST_SIZE},
};
use serde_json::{Map, Value};
use std::path::Path;

pub fn read_json(path: &Path) -> Result<Value> {
    let bytes = file::read(path, MOST_JSON)?;
    serde_json::from_slice(&bytes).map_err(|e| FormatError::from(e.to_string()).at(path))
}

/// Token ids from a number, a list of numbers, or null (none).
pub fn token_ids(value: &Value) -> Result<Vec<u32>, String> {
    let id = |value: &Value| {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| format!("{value} is not a token id"))
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(id).collect(),
        one => Ok(vec![id(one)?]),
    }
}

/// A JSON object in which a null value counts as missing.
#[derive(Clone, Copy)]
pub struct Keys<'a>(pub &'a Map<String, Value>);

impl<'a> Keys<'a> {
    pub fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub fn size(self, key: &str, default: Option<usize>) -> Result<usize, String> {
        let Some(value) = self.get(key) else {
            return default.ok_or_else(|| format!("has no {key}"));
        };
        let size = value
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .filter(|size| (1..=MOST_SIZE).contains(size));
        size.ok_or_else(|| format!("{key} is {value}; 1 to {MOST_SIZE} is supported"))
    }

    pub fn float(self, key: &str, default: f32) -> Result<f32, String> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let float = value.as_f64().map(|float| float as f32).filter(|float| float.is_finite());
        float.ok_or_else(|| format!("{key} is {value}; a number is needed"))
    }

    pub fn needed(self, key: &str) -> Result<f32, String> {
        if self.get(key).is_none() {
            return Err(format!("rotary scaling has no {key}"));
        }
        self.float(key, 0.0)
    }

    pub fn flag(self, key: &str) -> Result<bool, String> {
        let value = self.get(key).unwrap_or(&Value::Bool(false));
        value.as_bool().ok_or_else(|| format!("{key} is {value}; true or false is needed"))
    }

    pub fn text(self, key: &str) -> Result<Option<&'a str>, String> {
        let text = |value: &'a Value| {
            value.as_str().ok_or_else(|| format!("{key} is {value}; a string is needed"))
        };
        self.get(key).map(text).transpose()
    }

    pub fn object(self, key: &str) -> Result<Option<Self>, String> {
        let object = |value: &'a Value| {
            value
                .as_object()
                .map(Self)
                .ok_or_else(|| format!("{key} is {value}; an object is needed"))
        };
        self.get(key).map(object).transpose()
    }

    /// A missing token gets the default; a null means that there is none.
    pub fn token(self, key: &str, default: Option<u32>) -> Result<Option<u32>, String> {
        let Some(value) = self.0.get(key) else { return Ok(default) };
        match token_ids(value)?.as_slice() {
            [] => Ok(None),
            &[id] => Ok(Some(id)),
            _ => Err(format!("{key} is {value}; one token is needed")),
        }
    }
}
