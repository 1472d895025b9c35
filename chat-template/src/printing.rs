//! Values as text.

use crate::{
    budget::Output,
    value::{Shape, Value},
};
use std::fmt::Write as _;

impl Value {
    /// As it is written into the text.
    pub fn write(&self, out: &mut Output) -> Result<(), String> {
        match self {
            Self::Str(text) => out.push(text),
            Self::Undefined => Ok(()),
            other => other.write_python(out),
        }
    }

    /// As Python's `repr` writes it.
    pub fn write_python(&self, out: &mut Output) -> Result<(), String> {
        match self {
            Self::None => out.push("None"),
            Self::Bool(value) => out.push(if *value { "True" } else { "False" }),
            Self::Int(value) => out.push(&value.to_string()),
            Self::Float(value) => out.push(&float(*value)),
            Self::Str(text) => quoted(text, out),
            Self::Bytes(bytes) => byte_string(bytes, out),
            Self::List(items) => {
                let tuple = items.shape().class() == Shape::Tuple;
                if let Shape::View(name) = items.shape() {
                    out.push(name)?;
                    out.push("(")?;
                }
                out.push(if tuple { "(" } else { "[" })?;
                for (i, item) in items.iter().enumerate() {
                    out.push(if i > 0 { ", " } else { "" })?;
                    item.write_python(out)?;
                }
                out.push(match (tuple, items.len()) {
                    (false, _) if matches!(items.shape(), Shape::View(_)) => "])",
                    (false, _) => "]",
                    (true, 1) => ",)",
                    (true, _) => ")",
                })
            }
            Self::Map(entries) => {
                out.push("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    out.push(if i > 0 { ", " } else { "" })?;
                    key.write_python(out)?;
                    out.push(": ")?;
                    value.write_python(out)?;
                }
                out.push("}")
            }
            Self::Undefined => out.push("Undefined"),
            Self::Generator(_) => Err("a generator cannot be written; `| list` can".into()),
            other => Err(format!("{} cannot be written", other.kind())),
        }
    }
}

/// A float as Python writes it.
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) =
            exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = format!("{value}");
    if text.contains('.') { text } else { text + ".0" }
}

/// A string as Python's `repr` writes it.
fn quoted(text: &str, out: &mut Output) -> Result<(), String> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.budget().check(10 * text.len())?;
    let mut all = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => all.push_str("\\n"),
            '\r' => all.push_str("\\r"),
            '\t' => all.push_str("\\t"),
            '\\' => all.push_str("\\\\"),
            c if c == quote => all.extend(['\\', c]),
            c if printable(c) => all.push(c),
            c => escape(c, &mut all),
        }
    }
    all.push(quote);
    out.push(&all)
}

/// Escapes a character by its number, as Python does.
pub fn escape(c: char, out: &mut String) {
    let _ = match c as u32 {
        code @ ..0x100 => write!(out, "\\x{code:02x}"),
        code @ ..0x1_0000 => write!(out, "\\u{code:04x}"),
        code => write!(out, "\\U{code:08x}"),
    };
}

/// Returns whether `repr` shows a character as it is: controls, spaces but the usual one, invisible
/// formatting and private characters are escaped. Unassigned characters are taken for printable.
fn printable(c: char) -> bool {
    !matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{a0}' | '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
        | '\u{1680}' | '\u{180e}' | '\u{2000}'..='\u{200f}' | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}'
        | '\u{3000}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}'
        | '\u{e0001}'..='\u{e007f}' | '\u{f0000}'..)
}

/// Bytes as Python's `repr` writes them.
fn byte_string(bytes: &[u8], out: &mut Output) -> Result<(), String> {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    out.budget().check(4 * bytes.len())?;
    let mut all = format!("b{quote}");
    for &byte in bytes {
        match char::from(byte) {
            '\n' => all.push_str("\\n"),
            '\r' => all.push_str("\\r"),
            '\t' => all.push_str("\\t"),
            '\\' => all.push_str("\\\\"),
            c if c == quote => all.extend(['\\', c]),
            c @ ' '..='~' => all.push(c),
            c => escape(c, &mut all),
        }
    }
    all.push(quote);
    out.push(&all)
}
