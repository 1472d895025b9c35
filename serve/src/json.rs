//! Untrusted JSON: values are counted before they are built, since an empty object of eight bytes
//! takes 600 in memory. Integers of more than 64 bits would be rounded.

use crate::error::{ApiError, Result};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::{cell::Cell, fmt};

/// Most values of a body: prompts are lists of as many token ids, of 32 bytes each in memory.
const MOST_VALUES: usize = 1 << 20;
/// Most objects and lists: 4096 messages have three each, and room is left. They take 40 MiB at
/// most.
const MOST_GROUPS: usize = 1 << 16;

/// Size from which an integer may have more than 64 bits: 2^63.
const LARGE: f64 = 9_223_372_036_854_775_808.0;

/// Reads a body.
pub fn read(body: &[u8]) -> Result<Value> {
    let wrong = |error| ApiError::request(format!("invalid JSON: {error}"));
    let left = Left {
        values: Cell::new(MOST_VALUES),
        groups: Cell::new(MOST_GROUPS),
        is_large: Cell::new(false),
    };
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = left.deserialize(&mut reader).map_err(wrong)?;
    reader.end().map_err(wrong)?;
    if left.is_large.get()
        && let Some((place, integer)) = large_integer(str::from_utf8(body).unwrap_or_default())
    {
        let what = format!("the integer {integer:.40} has more than 64 bits");
        return Err(ApiError::field(&place, format!("{what}; pass it as a string")));
    }
    Ok(value)
}

/// Where a value is in a JSON text.
enum Step {
    Entry(String),
    Item(usize),
}

/// Returns the first integer of a JSON text that has more than 64 bits, and its place.
fn large_integer(json: &str) -> Option<(String, &str)> {
    let (mut steps, mut at) = (Vec::new(), 0);
    while let Some(byte) = json.as_bytes().get(at) {
        let rest = &json[at..];
        let length = match byte {
            b'"' => {
                let length = string_length(rest);
                if rest[length..].trim_ascii_start().starts_with(':')
                    && let Some(last) = steps.last_mut()
                {
                    *last = Step::Entry(serde_json::from_str(&rest[..length]).unwrap_or_default());
                }
                length
            }
            b'-' | b'0'..=b'9' => {
                let is_other =
                    |c: char| !matches!(c, '-' | '+' | '.' | 'e' | 'E') && !c.is_ascii_digit();
                let number = &rest[..rest.find(is_other).unwrap_or(rest.len())];
                let is_integer = !number.contains(['.', 'e', 'E']);
                if is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    return Some((place(&steps), number));
                }
                number.len()
            }
            _ => {
                match (byte, steps.last_mut()) {
                    (b'{', _) => steps.push(Step::Entry(String::new())),
                    (b'[', _) => steps.push(Step::Item(0)),
                    (b'}' | b']', _) => drop(steps.pop()),
                    (b',', Some(Step::Item(index))) => *index += 1,
                    _ => {}
                }
                1
            }
        };
        at += length;
    }
    None
}

/// Returns the bytes of a string with its quotes, with which a text begins.
fn string_length(json: &str) -> usize {
    let mut is_escaped = false;
    let is_end = |byte: u8| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    };
    json.bytes().skip(1).position(is_end).map_or(json.len(), |length| length + 2)
}

fn place(steps: &[Step]) -> String {
    let mut place = String::new();
    for step in steps {
        match step {
            Step::Entry(name) if place.is_empty() => place += name,
            Step::Entry(name) => place += &format!(".{name}"),
            Step::Item(index) => place += &format!("[{index}]"),
        }
    }
    place
}

/// Numbers of values and groups that may still come.
struct Left {
    values: Cell<usize>,
    groups: Cell<usize>,
    /// Whether there was a number that may be an integer of more than 64 bits.
    is_large: Cell<bool>,
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
        self.is_large.set(self.is_large.get() || value.abs() >= LARGE);
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
    fn large_integers_are_named() {
        let named = |text: &str| {
            let error = read(text.as_bytes()).unwrap_err().object()["error"].clone();
            let message = error["message"].as_str().unwrap().to_owned();
            (error["param"].as_str().unwrap().to_owned(), message)
        };
        let (param, message) = named("{\"seed\": 18446744073709551616}");
        assert_eq!(param, "seed");
        assert!(message.contains("the integer 18446744073709551616 has more than"), "{message}");
        for (text, place) in [
            (r#"{"a": {"b\"]": "1\\", "c" : [1, {}, [2, -9223372036854775809]]}}"#, "a.c[2][1]"),
            (
                r#"{"a": [{"x": 1}, {"y": "99999999999999999999", "\u00e9": 1e300, "z": 99999999999999999999}]}"#,
                "a[1].z",
            ),
            (r#"{"é": 99999999999999999999}"#, "é"),
        ] {
            assert_eq!(named(text).0, place);
        }
        for fine in [
            "[18446744073709551615, -9223372036854775808, 9.3e18, -1e300, 18446744073709551616.0]",
            r#"{"9": "18446744073709551616", "18446744073709551616": 9223372036854775808.0}"#,
        ] {
            assert_eq!(
                read(fine.as_bytes()).unwrap(),
                serde_json::from_str::<Value>(fine).unwrap()
            );
        }
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
