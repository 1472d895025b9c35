//! Untrusted JSON: values are counted before they are built, since an empty object of eight bytes
//! takes 600 in memory.

use crate::error::{ApiError, Result};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::{cell::Cell, fmt};

/// Most values of a body: prompts are lists of as many token ids, of 32 bytes each in memory.
const MOST_VALUES: usize = 1 << 20;
/// Most objects and lists: 4096 messages have three each, and room is left. They take 40 MiB at
/// most.
const MOST_GROUPS: usize = 1 << 16;

/// Reads a body.
pub fn read(body: &[u8]) -> Result<Value> {
    let wrong = |error| ApiError::request(format!("invalid JSON: {error}"));
    let left = Left { values: Cell::new(MOST_VALUES), groups: Cell::new(MOST_GROUPS) };
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = left.deserialize(&mut reader).map_err(wrong)?;
    reader.end().map_err(wrong)?;
    Ok(value)
}

/// Numbers of values and groups that may still come.
struct Left {
    values: Cell<usize>,
    groups: Cell<usize>,
}

fn take<E: Error>(left: &Cell<usize>, most: usize, what: &str) -> Result<(), E> {
    let Some(less) = left.get().checked_sub(1) else {
        return Err(E::custom(format!("more than {most} {what}")));
    };
    left.set(less);
    Ok(())
}

impl Left {
    fn group<E: Error>(&self) -> Result<(), E> {
        take(&self.groups, MOST_GROUPS, "objects and lists")
    }
}

impl<'de> DeserializeSeed<'de> for &Left {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        take(&self.values, MOST_VALUES, "values")?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &Left {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.group()?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        self.group()?;
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            map.insert(name, fields.next_value_seed(self)?);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_serde_json_reads() {
        let text = r#"{"a": [1, -1, 1.5, 1e300, true, null, "x\n\u00e9"], "b": {"a": {}}, "a": [18446744073709551615]}"#;
        assert_eq!(read(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        for wrong in ["", "{", "[1,]", "1 2", "nul", "\"\u{1}\""] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(read(&[b'['; 200]).is_err(), "too deep");
    }

    #[test]
    fn counts_of_json_values_are_bounded() {
        let list =
            |item: &str, count: usize| format!("[{}{item}]", format!("{item},").repeat(count - 1));
        let message = |text: String| {
            read(text.as_bytes()).map_err(|error| error.object()["error"]["message"].to_string())
        };
        assert!(
            message(list("0", MOST_VALUES - 1)).is_ok()
                && message(list("{}", MOST_GROUPS - 1)).is_ok()
        );
        assert!(message(list("0", MOST_VALUES)).unwrap_err().contains("more than 1048576 values"));
        assert!(
            message(list("{}", MOST_GROUPS))
                .unwrap_err()
                .contains("more than 65536 objects and lists")
        );
        assert!(message(list("[]", MOST_GROUPS)).unwrap_err().contains("more than 65536"));
    }
}
