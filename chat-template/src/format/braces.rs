//! `str.format`: fields in braces.

use super::spec::{Result, Spec, represented};
use crate::{
    budget::Output,
    ops::{Given, Ops},
    value::Value,
};

/// Replaces the fields of a format by arguments.
pub fn format(ops: &Ops, format: &str, given: &Given) -> Result<String> {
    Fields { ops, given, next: Some(0) }.replaced(format, true)
}

struct Fields<'a> {
    ops: &'a Ops,
    given: &'a Given,
    /// Position of the next field without a name; `None` once a field has a number.
    next: Option<usize>,
}

impl Fields<'_> {
    /// Text with its fields replaced. Formats of fields have fields too, but theirs have none.
    fn replaced(&mut self, format: &str, outer: bool) -> Result<String> {
        self.ops.budget.check(format.len())?;
        let (mut out, mut rest) = (Output::new(&self.ops.budget), format);
        while let Some(at) = rest.find(['{', '}']) {
            out.push(&rest[..at])?;
            let (brace, after) = rest[at..].split_at(1);
            if let Some(after) = after.strip_prefix(brace).filter(|_| outer) {
                out.push(brace)?;
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err("a format has a single `}`; `}}` writes one".into());
            }
            let end = field_end(after).ok_or("a field of a format has no `}`")?;
            if !outer && after[..end].contains('{') {
                return Err("fields within fields are nested too deep".into());
            }
            out.push(&self.field(&after[..end], outer)?)?;
            rest = &after[end + 1..];
        }
        out.push(rest)?;
        Ok(out.into_text())
    }

    /// The text of a field: a name, a conversion after `!`, and a format after `:`.
    fn field(&mut self, field: &str, outer: bool) -> Result<String> {
        self.ops.budget.step(1)?;
        let end = name_end(field);
        let (name, mut rest) = field.split_at(end);
        let value = self.value(name)?;
        let mut conversion = None;
        if let Some(after) = rest.strip_prefix('!') {
            conversion = after.chars().next();
            rest = &after[conversion.map_or(0, char::len_utf8)..];
        }
        let spec = match rest.strip_prefix(':') {
            Some(spec) if outer => self.replaced(spec, false)?,
            Some(spec) => spec.to_owned(),
            None if rest.is_empty() => String::new(),
            None => return Err(format!("`{{{field}}}` is not a field of a format")),
        };
        let converted = match conversion {
            None => None,
            Some('s') => Some(self.ops.written(&value)?),
            Some('r') => Some(represented(self.ops, &value, false)?),
            Some('a') => Some(represented(self.ops, &value, true)?),
            Some(other) => return Err(format!("there is no conversion `!{other}`")),
        };
        match converted {
            Some(text) => Spec::parse(&spec)?.value(self.ops, &self.ops.text(text)?),
            None if spec.is_empty() => self.ops.written(&value),
            None => Spec::parse(&spec)?.value(self.ops, &value),
        }
    }

    /// The argument that a name means, with its attributes and items.
    fn value(&mut self, name: &str) -> Result<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let position = match first {
            "" => {
                let next = self.next.ok_or("fields have numbers, or all have none")?;
                self.next = Some(next + 1);
                Some(next)
            }
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                if self.next.take().is_some_and(|next| next > 0) {
                    return Err("fields have numbers, or all have none".into());
                }
                Some(digits.parse().map_err(|_| format!("there is no argument {digits}"))?)
            }
            _ => None,
        };
        let found = match position {
            Some(at) => self.given.positional.get(at),
            None => self.given.named.iter().find(|(key, _)| key == first).map(|(_, it)| it),
        };
        let shown = || position.map_or(first.to_owned(), |at| at.to_string());
        let mut value = found.ok_or_else(|| format!("there is no argument {}", shown()))?.clone();
        while !rest.is_empty() {
            value = self.part(&value, &mut rest)?;
        }
        Ok(value)
    }

    /// Takes an attribute or an item from the beginning of a name's rest.
    fn part(&self, value: &Value, rest: &mut &str) -> Result<Value> {
        self.ops.budget.step(1)?;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            *rest = &after[end..];
            return self.ops.attribute(value, &after[..end]);
        }
        let after = rest.strip_prefix('[').unwrap_or(rest);
        let end = after.find(']').ok_or("`]` is missing in a field of a format")?;
        *rest = &after[end + 1..];
        let index = match after[..end].parse() {
            Ok(index) => Value::Int(index),
            Err(_) => self.ops.text(&after[..end])?,
        };
        self.ops.item(value, &index)
    }
}

/// Where a field ends, which may have fields in it.
fn field_end(field: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, byte) in field.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Where the name in a field ends. `!` and `:` in square brackets belong to it.
fn name_end(field: &str) -> usize {
    let mut inside = false;
    for (at, byte) in field.bytes().enumerate() {
        match byte {
            b'[' => inside = true,
            b']' => inside = false,
            b'!' | b':' if !inside => return at,
            _ => {}
        }
    }
    field.len()
}
