//! JSON files of a model directory, and what is read of them.

use super::{
    file,
    format_error::FormatError,
    stand_in::{START, stand_in},
};
use crate::{
    error::Result,
    limits::files::{MOST_JSON, MOST_SIZE},
};
use serde_json::{Map, Value};
use std::path::Path;

pub fn read_json(path: &Path) -> Result<Value> {
    let bytes = file::read(path, MOST_JSON)?;
    parse(&bytes).map_err(|problem| problem.at(path))
}

/// Parses JSON as Python reads it: a byte order mark is dropped, and the numbers `NaN`, `Infinity`
/// and `-Infinity` become strings, which are refused where a number is used.
///
/// # Errors
/// What is wrong with it, or what it is instead of JSON.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, FormatError> {
    let bytes = without_mark(bytes);
    serde_json::from_slice(bytes).or_else(|error| {
        let known = || stand_in(&bytes[..bytes.len().min(START)]);
        match quoted_numbers(bytes) {
            Some(quoted) => {
                serde_json::from_slice(&quoted).map_err(|error| error.to_string().into())
            }
            None => Err(known().unwrap_or_else(|| error.to_string().into())),
        }
    })
}

/// Returns a text without its byte order mark.
pub(crate) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

/// Puts quotes around Python's numbers that JSON does not have; none if there are none.
fn quoted_numbers(json: &[u8]) -> Option<Vec<u8>> {
    const NUMBERS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    let (mut quoted, mut rest, mut in_string) = (Vec::new(), json, false);
    while let Some((&first, next)) = rest.split_first() {
        let number = NUMBERS.into_iter().find(|number| !in_string && rest.starts_with(number));
        let taken = match (number, first) {
            (Some(number), _) => {
                quoted.extend([b"\"", number, b"\""].concat());
                rest = &rest[number.len()..];
                continue;
            }
            // The character after it is not the end of the string.
            (None, b'\\') if in_string => 2,
            (None, b'"') => {
                in_string = !in_string;
                1
            }
            _ => 1,
        };
        let taken = taken.min(1 + next.len());
        quoted.extend(&rest[..taken]);
        rest = &rest[taken..];
    }
    (quoted.len() > json.len()).then_some(quoted)
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
        float.ok_or_else(|| format!("{key} is {value}; a finite number is needed"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_is_read_as_python_writes_it() {
        let text = "\u{feff}{\"a\": NaN, \"b\": [-Infinity, 1], \"c NaN \\\" Infinity\": Infinity}";
        let expected =
            json!({ "a": "NaN", "b": ["-Infinity", 1], "c NaN \" Infinity": "Infinity" });
        assert_eq!(parse(text.as_bytes()), Ok(expected.clone()));
        let error = Keys(expected.as_object().unwrap()).float("a", 1.0).unwrap_err();
        assert_eq!(error, "a is \"NaN\"; a finite number is needed");
        for damaged in ["{\"a\": nan}", "{\"a\": NaN", "\"\\", "NaN\"", ""] {
            assert!(parse(damaged.as_bytes()).is_err(), "{damaged}");
        }
    }
}
