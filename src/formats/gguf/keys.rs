//! Metadata keys of a GGUF file's model.

use super::{file::GgufFile, value::GgufValue};
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

/// A metadata value for an error message, shortened.
pub fn show(value: GgufValue<'_>) -> String {
    match value {
        GgufValue::Array(array) => return format!("an array of {}", array.len()),
        GgufValue::Bool(flag) => flag.to_string(),
        GgufValue::String(text) => format!("{text:?}"),
        GgufValue::F32(number) => number.to_string(),
        GgufValue::F64(number) => number.to_string(),
        GgufValue::U64(number) => number.to_string(),
        integer => integer.as_i64().map_or_else(String::new, |integer| integer.to_string()),
    }
    .chars()
    .take(80)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_without_their_types() {
        for (value, shown) in [
            (GgufValue::U8(7), "7"),
            (GgufValue::I64(-7), "-7"),
            (GgufValue::U64(u64::MAX), "18446744073709551615"),
            (GgufValue::F32(0.5), "0.5"),
            (GgufValue::Bool(true), "true"),
            (GgufValue::String("a\"b"), r#""a\"b""#),
        ] {
            assert_eq!(show(value), shown);
        }
        let long = "x".repeat(100);
        assert_eq!(show(GgufValue::String(&long)).len(), 80);
    }
}
