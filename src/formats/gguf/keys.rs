//! Metadata keys of a GGUF file's model.

use super::{
    file::GgufFile,
    value::{GgufValue, show},
};
use crate::limits::files::MOST_SIZE;

/// The metadata keys that begin with the architecture's name.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    pub file: &'a GgufFile,
    pub architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub fn get(self, key: &str) -> (String, Option<GgufValue<'a>>) {
        let key = format!("{}.{key}", self.architecture);
        let value = self.file.get(&key);
        (key, value)
    }

    pub fn size(self, key: &str, default: Option<usize>) -> Result<usize, String> {
        let (key, value) = self.get(key);
        let Some(value) = value else { return default.ok_or_else(|| format!("has no {key}")) };
        let size = value
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .filter(|&size| (1..=MOST_SIZE).contains(&size));
        size.ok_or_else(|| format!("{key} is {}; 1 to {MOST_SIZE} are supported", show(value)))
    }

    pub fn float(self, key: &str, default: Option<f32>) -> Result<f32, String> {
        let (key, value) = self.get(key);
        let Some(value) = value else { return default.ok_or_else(|| format!("has no {key}")) };
        let float = value.as_f64().map(|float| float as f32).filter(|float| float.is_finite());
        float.ok_or_else(|| format!("{key} is {}; a number is needed", show(value)))
    }
}
