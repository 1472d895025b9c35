//! The fields of an untrusted JSON object. Fields that are not read are errors.

use crate::error::{ApiError, Result};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// An object whose fields are taken one by one. Null counts as missing.
pub struct Fields {
    /// Prefix of the fields' names: the object's place in the request.
    place: String,
    map: Map<String, Value>,
    /// Whether fields without effect are errors.
    strict: bool,
}

impl Fields {
    /// Reads the object at a place of the request, which is empty for the body itself. Of a `strict`
    /// server, fields without effect are errors.
    pub fn new(place: &str, value: Value, strict: bool) -> Result<Self> {
        let Value::Object(mut map) = value else {
            let what = format!("expected an object, found {}", kind(&value));
            return Err(if place.is_empty() {
                ApiError::request(format!("invalid body: {what}"))
            } else {
                ApiError::field(place, what)
            });
        };
        map.retain(|_, value| !value.is_null());
        let place = if place.is_empty() { String::new() } else { format!("{place}.") };
        Ok(Self { place, map, strict })
    }

    /// Reads an object in a field, for the same server.
    pub fn nested(&self, field: &str, value: Value) -> Result<Self> {
        Self::new(&self.name(field), value, self.strict)
    }

    /// Returns whether fields without effect are errors.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Returns the full name of a field.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.place)
    }

    /// Returns the name of the object.
    pub fn place(&self) -> &str {
        self.place.trim_end_matches('.')
    }

    pub fn wrong(&self, field: &str, what: impl std::fmt::Display) -> ApiError {
        ApiError::field(&self.name(field), what)
    }

    pub fn missing(&self, field: &str) -> ApiError {
        ApiError::missing(&self.name(field))
    }

    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field)
    }

    pub fn has(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    fn typed<T>(
        &mut self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.wrong(field, format!("expected {expected}, found {}", kind(&value)))),
        }
    }

    pub fn text(&mut self, field: &str) -> Result<Option<String>> {
        self.typed(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub fn choice(&mut self, field: &str) -> Result<Option<bool>> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub fn flag(&mut self, field: &str) -> Result<bool> {
        self.flag_or(field, false)
    }

    pub fn flag_or(&mut self, field: &str, default: bool) -> Result<bool> {
        Ok(self.choice(field)?.unwrap_or(default))
    }

    pub fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f32>> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        Ok(self
            .typed(field, &expected, |value| {
                value.as_f64().filter(|number| range.contains(number))
            })?
            .map(|number| number as f32))
    }

    pub fn count(&mut self, field: &str, range: RangeInclusive<u64>) -> Result<Option<usize>> {
        let expected = match *range.end() {
            u64::MAX => format!("a whole number from {} on", range.start()),
            most => format!("a whole number from {} to {most}", range.start()),
        };
        let count = self.typed(field, &expected, |value| {
            value.as_u64().filter(|count| range.contains(count))
        })?;
        Ok(count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// Drops fields that have no effect on the answer. A strict server refuses them.
    pub fn harmless(&mut self, fields: &[&str]) -> Result<()> {
        for field in fields {
            if self.take(field).is_some() {
                self.ineffective(field)?;
            }
        }
        Ok(())
    }

    /// Drops an object that has no effect on the answer, of these fields. A strict server refuses
    /// other fields.
    pub fn without_effect(mut self, fields: &[&str]) -> Result<()> {
        fields.iter().for_each(|field| drop(self.take(field)));
        if self.strict { self.end() } else { Ok(()) }
    }

    /// Refuses a field that has no effect on the answer, if the server is strict.
    pub fn ineffective(&self, field: &str) -> Result<()> {
        if self.strict {
            Err(self.wrong(field, "has no effect; remove it (`--strict`)"))
        } else {
            Ok(())
        }
    }

    /// Checks fields that are not supported: they may only have neutral values.
    pub fn unsupported(&mut self, fields: &[(&str, &[&str])]) -> Result<()> {
        for &(field, neutral) in fields {
            let Some(value) = self.take(field) else { continue };
            let text = value.to_string();
            if !neutral.contains(&text.as_str()) {
                return Err(self.wrong(field, unsupported(neutral)));
            }
        }
        Ok(())
    }

    /// Checks that no field is left.
    pub fn end(self) -> Result<()> {
        match self.map.keys().next() {
            Some(field) => Err(self.wrong(field, "unknown field")),
            None => Ok(()),
        }
    }
}

/// Says that a field is not supported, and what it may be nevertheless.
fn unsupported(neutral: &[&str]) -> String {
    match neutral {
        [] => "is not supported".into(),
        values => format!("is not supported; only {} is accepted", values.join(" or ")),
    }
}

/// Describes a value for a message.
pub fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}
