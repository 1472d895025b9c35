//! `%` of strings, and the filter `format`.

use super::spec::{Result, Spec, character, number, represented, take};
use crate::{
    budget::Output,
    ops::Ops,
    value::{Entries, Shape, Value, find},
};
use std::rc::Rc;

/// Replaces what follows each `%` by a value: in their order, or by keys in round brackets.
pub fn format(
    ops: &Ops,
    format: &str,
    values: &[Value],
    entries: Option<Entries>,
) -> Result<String> {
    let (mut out, mut rest) = (Output::new(&ops.budget), format);
    // Python takes a list for something with keys, of which none need be used.
    let is_list = match values {
        [Value::List(items)] => items.shape() == Shape::List,
        [value] => matches!(value, Value::Undefined),
        _ => false,
    };
    let keyed = entries.is_some() || is_list;
    let mut arguments = Arguments { ops, values, entries, taken: 0 };
    while let Some(at) = rest.find('%') {
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        out.push(&arguments.directive(&mut rest)?)?;
    }
    out.push(rest)?;
    if !keyed && arguments.taken < values.len() {
        let (taken, all) = (arguments.taken, values.len());
        return Err(format!("the format takes {taken} of {all} values"));
    }
    Ok(out.into_text())
}

struct Arguments<'a> {
    ops: &'a Ops,
    values: &'a [Value],
    entries: Option<Entries>,
    taken: usize,
}

impl Arguments<'_> {
    fn next(&mut self) -> Result<Value> {
        let value = self.values.get(self.taken).cloned();
        self.taken += 1;
        value.ok_or_else(|| "the format takes more values than there are".into())
    }

    /// The text of a directive, whose `%` is taken.
    fn directive(&mut self, rest: &mut &str) -> Result<String> {
        self.ops.budget.step(1)?;
        let key = self.key(rest)?;
        let (mut spec, mut left, mut zero) = (Spec::default(), false, false);
        while let Some(flag) = take(rest, "-+ 0#") {
            match flag {
                '-' => left = true,
                '0' => zero = true,
                '#' => spec.alternate = true,
                '+' => spec.sign = Some('+'),
                _ => spec.sign = spec.sign.or(Some(' ')),
            }
        }
        spec.width = match take(rest, "*") {
            Some(_) => {
                let width = self.next()?.as_int().ok_or("a width is an integer")?;
                left |= width < 0;
                usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX)
            }
            None => number(rest)?.unwrap_or(0),
        };
        if take(rest, ".").is_some() {
            spec.precision = Some(match take(rest, "*") {
                Some(_) => {
                    let precision = self.next()?.as_int().ok_or("a precision is an integer")?;
                    usize::try_from(precision).unwrap_or(0)
                }
                None => number(rest)?.unwrap_or(0),
            });
        }
        take(rest, "hlL");
        let kind = rest.chars().next().ok_or("a format ends after `%`")?;
        *rest = &rest[kind.len_utf8()..];
        spec.align = if left { Some('<') } else { None };
        if kind == '%' {
            return Ok("%".into());
        }
        let value = match key {
            Some(value) => value,
            None => self.next()?,
        };
        self.written(kind, spec, zero && !left, &value)
    }

    /// The value of a key in round brackets, if there is one.
    fn key(&mut self, rest: &mut &str) -> Result<Option<Value>> {
        let Some(after) = rest.strip_prefix('(') else { return Ok(None) };
        let end = after.find(')').ok_or("`)` is missing in a format")?;
        *rest = &after[end + 1..];
        let entries = self.entries.as_ref().ok_or("a format with keys takes a dictionary")?;
        let key = self.ops.text(&after[..end])?;
        let found = find(entries, &key, &self.ops.budget)?;
        found.cloned().map(Some).ok_or_else(|| format!("there is no key `{}`", &after[..end]))
    }

    fn written(&self, kind: char, mut spec: Spec, zero: bool, value: &Value) -> Result<String> {
        let ops = self.ops;
        if zero && "diuxXoeEfFgG".contains(kind) {
            (spec.fill, spec.align) = (Some('0'), Some('='));
        }
        // Strings are at the right by default, unlike those of `str.format`.
        let string = |spec: Spec, text: &str| {
            Spec { align: spec.align.or(Some('>')), ..spec }.string(ops, text)
        };
        let wrong = || format!("`%{kind}` of {}", value.kind());
        match kind {
            's' => string(spec, &ops.written(value)?),
            'r' => string(spec, &represented(ops, value, false)?),
            'a' => string(spec, &represented(ops, value, true)?),
            'c' => match value {
                Value::Str(text) if text.chars().count() == 1 => {
                    string(Spec { precision: None, ..spec }, text)
                }
                other => {
                    let c = character(other).ok_or_else(wrong)?;
                    string(Spec { precision: None, ..spec }, &c.to_string())
                }
            },
            'd' | 'i' | 'u' | 'o' | 'x' | 'X' => {
                let decimal = "diu".contains(kind);
                let integer = match value {
                    Value::Float(value) if decimal && value.abs() < 9e18 => *value as i64,
                    other => other.as_int().ok_or_else(wrong)?,
                };
                spec.kind = Some(if decimal { 'd' } else { kind });
                digits(ops, spec, integer)
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                spec.kind = Some(kind);
                spec.float(ops, value.as_float().ok_or_else(wrong)?)
            }
            other => Err(format!("`%{}` is not a format", other.escape_default())),
        }
    }
}

/// An integer, whose precision is its least number of digits.
fn digits(ops: &Ops, spec: Spec, value: i64) -> Result<String> {
    let Some(least) = spec.precision else { return spec.integer(ops, value) };
    let wide = Spec { width: 0, fill: None, align: None, ..spec.clone() };
    let text = wide.integer(ops, value)?;
    let begin = text.find(|c: char| c.is_ascii_hexdigit()).unwrap_or(0);
    let begin = begin
        + if spec.alternate && text[begin..].len() > 2 && spec.kind != Some('d') { 2 } else { 0 };
    let (sign, number) = text.split_at(begin);
    let zeros = least.saturating_sub(number.len());
    ops.budget.check(zeros)?;
    spec.padded(ops, sign, &["0".repeat(zeros).as_str(), number].concat(), '>')
}

/// Values that a `%` operator formats: a tuple has several.
pub fn operands(value: &Value) -> Vec<Value> {
    match value {
        Value::List(items) if items.shape().class() == Shape::Tuple => items.to_vec(),
        other => vec![other.clone()],
    }
}

/// Entries for formats with names in round brackets.
pub fn entries(value: &Value) -> Option<Entries> {
    match value {
        Value::Map(entries) => Some(Rc::clone(entries)),
        _ => None,
    }
}
