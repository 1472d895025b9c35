//! Values as JSON, as Python's `json.dumps` writes it.

use crate::{
    budget::Output,
    printing::float,
    value::{Shape, Value},
};
use std::fmt::Write as _;

type Result<T> = std::result::Result<T, String>;

/// How JSON is written.
pub struct Json<'a> {
    /// Every entry on a line of its own, indented by this many blanks a level.
    pub indent: Option<usize>,
    /// Between two entries.
    pub comma: &'a str,
    /// Between a key and its value.
    pub colon: &'a str,
    /// Whether keys are sorted.
    pub sorted: bool,
    /// Whether everything beyond ASCII is escaped.
    pub ascii: bool,
}

impl Json<'_> {
    pub fn write(&self, value: &Value, out: &mut Output, level: usize) -> Result<()> {
        match value {
            Value::None => out.push("null"),
            Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
            Value::Int(value) => out.push(&value.to_string()),
            Value::Float(value) if value.is_finite() => out.push(&float(*value)),
            Value::Float(value) if value.is_nan() => out.push("NaN"),
            Value::Float(value) => out.push(if *value > 0.0 { "Infinity" } else { "-Infinity" }),
            Value::Str(text) => self.string(text, out),
            Value::List(items) if !matches!(items.shape(), Shape::View(_)) => {
                out.push("[")?;
                for (i, item) in items.iter().enumerate() {
                    self.separate(out, i, level)?;
                    self.write(item, out, level + 1)?;
                }
                self.end(out, items.is_empty(), level)?;
                out.push("]")
            }
            Value::Map(entries) => {
                let mut entries: Vec<_> = entries.iter().collect();
                if self.sorted {
                    if let Some((key, _)) = entries.iter().find(|(key, _)| key.as_str().is_none()) {
                        return Err(format!(
                            "keys are not sorted that are not strings, such as {}",
                            key.kind()
                        ));
                    }
                    let bytes: usize =
                        entries.iter().filter_map(|(key, _)| key.as_str()).map(str::len).sum();
                    out.budget().step(
                        (entries.len() + bytes / 16)
                            .saturating_mul(1 + entries.len().max(1).ilog2() as usize),
                    )?;
                    entries.sort_by_key(|(key, _)| key.as_str());
                }
                out.push("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    self.separate(out, i, level)?;
                    let quote = if key.as_str().is_some() { "" } else { "\"" };
                    out.push(quote)?;
                    self.write(key, out, level + 1)?;
                    out.push(quote)?;
                    out.push(self.colon)?;
                    self.write(value, out, level + 1)?;
                }
                self.end(out, entries.is_empty(), level)?;
                out.push("}")
            }
            other => Err(format!("{} is no JSON", other.kind())),
        }
    }

    fn separate(&self, out: &mut Output, i: usize, level: usize) -> Result<()> {
        out.push(if i > 0 { self.comma } else { "" })?;
        self.line(out, level + 1)
    }

    fn end(&self, out: &mut Output, empty: bool, level: usize) -> Result<()> {
        if empty { Ok(()) } else { self.line(out, level) }
    }

    fn line(&self, out: &mut Output, level: usize) -> Result<()> {
        match self.indent {
            Some(indent) => out.push("\n").and_then(|()| out.blanks(indent * level)),
            None => Ok(()),
        }
    }

    fn string(&self, text: &str, out: &mut Output) -> Result<()> {
        // A control character takes six bytes; so does one of two bytes, escaped.
        out.budget().check(6 * text.len())?;
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ascii {
            return out.push(&quoted);
        }
        let mut escaped = String::new();
        for c in quoted.chars() {
            match c {
                ' '..='~' => escaped.push(c),
                _ => {
                    for half in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(escaped, "\\u{half:04x}");
                    }
                }
            }
        }
        out.push(&escaped)
    }
}
