//! Functions, filters, tests and methods.

use super::{
    json::Json,
    ops::{Given, Ops},
    value::{Namespace, Output, Value, find},
};
use crate::limits::template::{MOST_INDENT, MOST_RANGE};
use std::{cmp::Ordering, rc::Rc};

type Result<T> = std::result::Result<T, String>;

/// The name of a function that every template has.
pub fn function(name: &str) -> Option<&'static str> {
    ["namespace", "range", "dict", "raise_exception"].into_iter().find(|known| *known == name)
}

pub fn call(ops: &Ops, name: &str, given: &Given) -> Result<Value> {
    match name {
        "namespace" => {
            let namespace = Namespace::new(&ops.budget);
            for (key, value) in pairs(ops, given)? {
                namespace.set(&ops.written(&key)?, value)?;
            }
            Ok(Value::Namespace(Rc::new(namespace)))
        }
        "dict" => Value::map(&ops.budget, pairs(ops, given)?),
        "range" => {
            given.at_most(3, &[])?;
            let number = |at: usize| {
                given.get(at, "").map(|value| value.as_int().ok_or_else(|| format!("{} is no number", value.kind()))).transpose()
            };
            let (start, end) = match (number(0)?, number(1)?) {
                (Some(end), None) => (0, end),
                (Some(start), Some(end)) => (start, end),
                _ => return Err("one number to three are needed".into()),
            };
            let step = number(2)?.unwrap_or(1);
            let length = match step {
                0 => return Err("steps of 0".into()),
                step if step > 0 => (i128::from(end) - i128::from(start) + i128::from(step) - 1) / i128::from(step),
                step => (i128::from(start) - i128::from(end) - i128::from(step) - 1) / -i128::from(step),
            };
            if length > i128::from(MOST_RANGE) {
                return Err(format!("{length} numbers; {MOST_RANGE} are supported"));
            }
            ops.budget.check(length.max(0) as usize * size_of::<Value>())?;
            Value::list(&ops.budget, (0..length.max(0) as i64).map(|i| Value::Int(start + i * step)).collect())
        }
        // What the template says to people: why it refuses.
        _ => {
            given.at_most(1, &[])?;
            Err(given.get(0, "").map_or_else(|| Ok(String::new()), |message| ops.written(message))?)
        }
    }
}

/// The entries of a dictionary that is given, and named arguments.
fn pairs(ops: &Ops, given: &Given) -> Result<Vec<(Value, Value)>> {
    if given.positional.len() > 1 {
        return Err("one dictionary at most is taken".into());
    }
    let mut all = match given.positional.first() {
        Some(Value::Map(entries)) => {
            ops.budget.check(entries.len() * size_of::<(Value, Value)>())?;
            entries.to_vec()
        }
        Some(other) => return Err(format!("{} is no dictionary", other.kind())),
        None => Vec::new(),
    };
    for (name, value) in &given.named {
        all.push((ops.text(name.as_str())?, value.clone()));
    }
    Ok(all)
}

pub fn method(ops: &Ops, of: &Value, name: &str, given: &Given) -> Result<Value> {
    ops.visit(of, given)?;
    match of {
        Value::Str(text) => string_method(ops, text, name, given),
        Value::Map(entries) => {
            ops.budget.step(entries.len())?;
            given.at_most(if name == "get" { 2 } else { 0 }, &[])?;
            match name {
                "items" => {
                    let pair = |(key, value): &(Value, Value)| Value::tuple(&ops.budget, vec![key.clone(), value.clone()]);
                    Value::list(&ops.budget, entries.iter().map(pair).collect::<Result<_>>()?)
                }
                "keys" => Value::list(&ops.budget, entries.iter().map(|(key, _)| key.clone()).collect()),
                "values" => Value::list(&ops.budget, entries.iter().map(|(_, value)| value.clone()).collect()),
                _ => {
                    let found = find(entries, given.get(0, "").ok_or("a key is needed")?, &ops.budget)?;
                    Ok(found.or(given.get(1, "")).cloned().unwrap_or(Value::None))
                }
            }
        }
        Value::Loop(_) if !given.named.is_empty() => Err("no argument of it has a name".into()),
        Value::Loop(state) if name == "cycle" => {
            let length = given.positional.len();
            if length == 0 { Err("nothing to cycle through".into()) } else { Ok(given.positional[state.index.get() % length].clone()) }
        }
        Value::Loop(state) => {
            let now = Value::list(&ops.budget, given.positional.clone())?;
            let changed = match &*state.changed.borrow() {
                Some(before) => !before.equals(&now, &ops.budget)?,
                None => true,
            };
            *state.changed.borrow_mut() = Some(now);
            Ok(Value::Bool(changed))
        }
        other => Err(format!("is no method of {}", other.kind())),
    }
}

/// A string argument.
fn string<'a>(given: &'a Given, at: usize, name: &str) -> Result<Option<&'a str>> {
    match given.get(at, name) {
        None | Some(Value::None) => Ok(None),
        Some(value) => value.as_str().map(Some).ok_or_else(|| format!("{} where a string is needed", value.kind())),
    }
}

fn count(given: &Given, at: usize, name: &str) -> Result<Option<usize>> {
    match given.get(at, name) {
        None | Some(Value::None) => Ok(None),
        Some(value) => {
            let count = value.as_int().and_then(|count| usize::try_from(count).ok());
            count.map(Some).ok_or_else(|| format!("{} where a count is needed", value.kind()))
        }
    }
}

fn string_method(ops: &Ops, text: &str, name: &str, given: &Given) -> Result<Value> {
    match name {
        "split" | "rsplit" => given.at_most(2, &["sep", "maxsplit"])?,
        "replace" => given.at_most(3, &["count"])?,
        "strip" | "lstrip" | "rstrip" | "startswith" | "endswith" | "find" | "count" | "join" => given.at_most(1, &[])?,
        _ => given.at_most(0, &[])?,
    }
    // Letters of another case take three times the bytes at most; parts are held as slices before they are values.
    ops.budget.check(size_of::<&str>() * text.len())?;
    let strings = |ops: &Ops, parts: Vec<&str>| -> Result<Value> {
        ops.budget.check(parts.len() * (size_of::<Value>() + 64) + text.len())?;
        let parts = parts.into_iter().map(|part| ops.text(part)).collect::<Result<_>>()?;
        Value::list(&ops.budget, parts)
    };
    match name {
        "upper" => ops.text(text.to_uppercase()),
        "lower" => ops.text(text.to_lowercase()),
        "title" => ops.text(title(text)),
        "capitalize" => ops.text(capitalized(text)),
        "isdigit" => Ok(Value::Bool(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))),
        "strip" | "lstrip" | "rstrip" => strip(ops, text, name, string(given, 0, "")?),
        "startswith" | "endswith" => {
            let one = |part: &Value| {
                let part = part.as_str().ok_or_else(|| format!("{} where a string is needed", part.kind()))?;
                ops.budget.step(1 + part.len() / 16)?;
                Ok(if name == "startswith" { text.starts_with(part) } else { text.ends_with(part) })
            };
            match given.get(0, "").ok_or("a string is needed")? {
                Value::List(parts) => parts.iter().map(one).collect::<Result<Vec<_>>>().map(|found| Value::Bool(found.contains(&true))),
                part => one(part).map(Value::Bool),
            }
        }
        "find" => {
            let part = string(given, 0, "")?.ok_or("a string is needed")?;
            Ok(Value::Int(text.find(part).map_or(-1, |at| text[..at].chars().count() as i64)))
        }
        "count" => {
            let part = string(given, 0, "")?.ok_or("a string is needed")?;
            Ok(Value::Int(if part.is_empty() { text.chars().count() + 1 } else { text.matches(part).count() } as i64))
        }
        "splitlines" => strings(ops, lines(text)),
        "split" | "rsplit" => {
            let most = match given.get(1, "maxsplit") {
                Some(value) => value.as_int().ok_or("maxsplit is no number")?,
                None => -1,
            };
            let most = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
            let parts: Vec<&str> = match (string(given, 0, "sep")?, name) {
                (Some(""), _) => return Err("an empty separator".into()),
                (Some(separator), "split") => text.splitn(most, separator).collect(),
                (Some(separator), _) => {
                    let mut parts: Vec<_> = text.rsplitn(most, separator).collect();
                    parts.reverse();
                    parts
                }
                (None, "split") => words(text, most),
                (None, _) if most == usize::MAX => words(text, most),
                (None, _) => return Err("rsplit by white space with a limit is not supported".into()),
            };
            strings(ops, parts)
        }
        "replace" => replace(ops, text, given),
        "join" => join(ops, given.get(0, "").ok_or("a list is needed")?, text, None),
        _ => Err("is no method of a string".into()),
    }
}

/// Lines, by everything that Python takes for the end of one.
fn lines(text: &str) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = rest.find(|c| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'));
        let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
        lines.push(line);
        rest = after.strip_prefix("\r\n").unwrap_or_else(|| after.get(after.chars().next().map_or(0, char::len_utf8)..).unwrap_or(""));
    }
    lines
}

/// Words between white space; the last of `most` has the rest.
fn words(text: &str, most: usize) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        if words.len() + 1 >= most {
            words.push(rest.trim_end());
            break;
        }
        let (word, after) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
        words.push(word);
        rest = after.trim_start();
    }
    words
}

fn strip(ops: &Ops, text: &str, name: &str, of: Option<&str>) -> Result<Value> {
    ops.budget.step(of.map_or(1, str::len).saturating_mul(text.len()) / 16)?;
    let stripped = |c: char| of.map_or(c.is_whitespace(), |of| of.contains(c));
    let text = if name == "rstrip" { text } else { text.trim_start_matches(stripped) };
    ops.text(if name == "lstrip" { text } else { text.trim_end_matches(stripped) })
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars.flat_map(char::to_lowercase)).collect())
}

fn title(text: &str) -> String {
    let mut begins = true;
    let letter = |c: char| {
        let letters: String = if begins { c.to_uppercase().collect() } else { c.to_lowercase().collect() };
        begins = !c.is_alphabetic();
        letters
    };
    text.chars().map(letter).collect()
}

fn replace(ops: &Ops, text: &str, given: &Given) -> Result<Value> {
    let (from, to) =
        (string(given, 0, "old")?.ok_or("what to replace is missing")?, string(given, 1, "new")?.ok_or("what to put there is missing")?);
    let most = count(given, 2, "count")?.unwrap_or(usize::MAX);
    ops.budget.step(text.len() / 4)?;
    let times = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() }.min(most);
    ops.budget.check(text.len().saturating_add(times.saturating_mul(to.len())))?;
    ops.text(text.replacen(from, to, most))
}

fn join(ops: &Ops, items: &Value, separator: &str, attribute: Option<&Value>) -> Result<Value> {
    let (items, mut text) = (ops.items(items)?, Output::new(&ops.budget));
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            text.push(separator)?;
        }
        let item = match attribute {
            Some(attribute) => ops.path(item, attribute)?,
            None => item.clone(),
        };
        ops.budget.step(1)?;
        item.write(&mut text)?;
    }
    ops.text(text.into_text())
}

/// What a filter takes, in the order of its positions; none for one whose arguments are those of what it calls, and for what is no filter.
fn parameters(filter: &str) -> Option<&'static [&'static str]> {
    Some(match filter {
        "default" | "d" => &["default_value", "boolean"],
        "trim" => &["chars"],
        "replace" => &["old", "new", "count"],
        "join" => &["d", "attribute"],
        "dictsort" => &["case_sensitive", "by", "reverse"],
        "sort" => &["reverse", "case_sensitive", "attribute"],
        "unique" | "min" | "max" => &["case_sensitive", "attribute"],
        "sum" => &["attribute", "start"],
        "batch" => &["linecount", "fill_with"],
        "indent" => &["width", "first", "blank"],
        "tojson" => &["ensure_ascii", "indent", "separators", "sort_keys"],
        "int" => &["default", "base"],
        "float" => &["default"],
        "round" => &["precision", "method"],
        "title" | "upper" | "lower" | "capitalize" | "string" | "safe" | "escape" | "e" | "forceescape" | "length" | "count" | "list"
        | "first" | "last" | "items" | "reverse" | "abs" => &[],
        _ => return None,
    })
}

pub fn filter(ops: &Ops, name: &str, value: &Value, given: &Given) -> Result<Value> {
    ops.visit(value, given)?;
    if let Some(parameters) = parameters(name) {
        given.at_most(parameters.len(), parameters)?;
    }
    let is = |at: usize, name: &str| given.get(at, name).is_some_and(Value::is_true);
    // What is undefined is an empty string, or list, to most.
    let as_text = |ops: &Ops| ops.written(value);
    match name {
        "default" | "d" => {
            let use_default = matches!(value, Value::Undefined) || is(1, "boolean") && !value.is_true();
            let default = given.get(0, "default_value").cloned();
            if use_default { default.map_or_else(|| ops.text(""), Ok) } else { Ok(value.clone()) }
        }
        "trim" => {
            let text = as_text(ops)?;
            strip(ops, &text, "strip", string(given, 0, "chars")?)
        }
        // Words, unlike those of the method, begin after white space, brackets and hyphens only.
        "title" => {
            let text = as_text(ops)?;
            ops.budget.check(3 * text.len())?;
            let words = text.split_inclusive(|c: char| c.is_whitespace() || "-({[<".contains(c));
            ops.text(words.map(capitalized).collect::<String>())
        }
        "upper" | "lower" | "capitalize" => {
            let text = as_text(ops)?;
            string_method(ops, &text, name, &Given::default())
        }
        "string" | "safe" => {
            let text = as_text(ops)?;
            ops.text(text)
        }
        "escape" | "e" | "forceescape" => {
            let text = as_text(ops)?;
            ops.budget.check(6 * text.len())?;
            let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            ops.text(escaped.replace('\'', "&#39;").replace('"', "&#34;"))
        }
        "replace" => {
            let text = as_text(ops)?;
            replace(ops, &text, given)
        }
        "length" | "count" => Ok(Value::Int(match value {
            Value::Str(text) => text.chars().count(),
            Value::List(items) => items.len(),
            Value::Map(entries) => entries.len(),
            Value::Undefined => 0,
            other => return Err(format!("{} has no length", other.kind())),
        } as i64)),
        "list" => Ok(Value::List(ops.items(value)?)),
        "first" => Ok(ops.items(value)?.first().cloned().unwrap_or(Value::Undefined)),
        "last" => Ok(ops.items(value)?.last().cloned().unwrap_or(Value::Undefined)),
        "join" => {
            let separator = string(given, 0, "d")?.unwrap_or("").to_owned();
            join(ops, value, &separator, given.get(1, "attribute"))
        }
        "items" => match value {
            Value::Undefined => Value::list(&ops.budget, Vec::new()),
            other => method(ops, other, "items", &Given::default()),
        },
        "dictsort" => {
            let Value::Map(entries) = value else { return Err(format!("{} is no dictionary", value.kind())) };
            let by = match string(given, 1, "by")?.unwrap_or("key") {
                "key" => 0,
                "value" => 1,
                other => return Err(format!("by `{other}`")),
            };
            let pair = |(key, value): &(Value, Value)| Value::tuple(&ops.budget, vec![key.clone(), value.clone()]);
            let pairs = entries.iter().map(pair).collect::<Result<Vec<_>>>()?;
            let by = Key { attribute: Some(&Value::Int(by)), case_sensitive: is(0, "case_sensitive") };
            sorted(ops, pairs, &by, is(2, "reverse"))
        }
        "sort" => {
            let by = Key { attribute: given.get(2, "attribute"), case_sensitive: is(1, "case_sensitive") };
            sorted(ops, ops.items(value)?.to_vec(), &by, is(0, "reverse"))
        }
        "reverse" => match value {
            Value::Str(text) => {
                ops.budget.check(text.len())?;
                ops.text(text.chars().rev().collect::<String>())
            }
            value => Value::list(&ops.budget, ops.items(value)?.iter().rev().cloned().collect()),
        },
        "unique" => {
            let by = Key { attribute: given.get(1, "attribute"), case_sensitive: is(0, "case_sensitive") };
            let (mut kept, mut keys) = (Vec::new(), Vec::<Value>::new());
            'items: for item in ops.items(value)?.iter() {
                let key = by.of(ops, item)?;
                for known in &keys {
                    if known.equals(&key, &ops.budget)? {
                        continue 'items;
                    }
                }
                keys.push(key);
                kept.push(item.clone());
            }
            Value::list(&ops.budget, kept)
        }
        "min" | "max" => {
            let by = Key { attribute: given.get(1, "attribute"), case_sensitive: is(0, "case_sensitive") };
            let mut best: Option<(Value, Value)> = None;
            for item in ops.items(value)?.iter() {
                let key = by.of(ops, item)?;
                let better = match &best {
                    Some((best, _)) => key.compare(best, &ops.budget)? == if name == "min" { Ordering::Less } else { Ordering::Greater },
                    None => true,
                };
                if better {
                    best = Some((key, item.clone()));
                }
            }
            Ok(best.map_or(Value::Undefined, |(_, item)| item))
        }
        "sum" => {
            let mut sum = given.get(1, "start").cloned().unwrap_or(Value::Int(0));
            for item in ops.items(value)?.iter() {
                ops.budget.step(1)?;
                let item = match given.get(0, "attribute") {
                    Some(attribute) => ops.path(item, attribute)?,
                    None => item.clone(),
                };
                sum = ops.binary("+", &sum, &item)?;
            }
            Ok(sum)
        }
        "map" => {
            let mut mapped = Vec::new();
            // Beyond the arguments there are: by name only.
            let attribute = given.get(usize::MAX, "attribute");
            if attribute.is_some() {
                given.at_most(0, &["attribute", "default"])?;
            }
            for item in ops.items(value)?.iter() {
                ops.budget.step(1)?;
                mapped.push(match attribute {
                    Some(attribute) => match (ops.path(item, attribute)?, given.get(usize::MAX, "default")) {
                        (Value::Undefined, Some(default)) => default.clone(),
                        (found, _) => found,
                    },
                    None => {
                        let name = string(given, 0, "")?.ok_or("the name of a filter is needed")?.to_owned();
                        if name == "map" {
                            return Err("maps of maps are not supported".into());
                        }
                        let rest = Given { positional: given.positional[1..].to_vec(), named: given.named.clone() };
                        filter(ops, &name, item, &rest)?
                    }
                });
            }
            Value::list(&ops.budget, mapped)
        }
        "select" | "reject" | "selectattr" | "rejectattr" => {
            given.at_most(usize::MAX, &[])?;
            let by_attribute = name.ends_with("attr");
            let (first, wanted) = (usize::from(by_attribute), name.starts_with("select"));
            let attribute = if by_attribute { Some(given.get(0, "").ok_or("an attribute is needed")?.clone()) } else { None };
            let test_name = string(given, first, "")?.map(str::to_owned);
            let rest = Given { positional: given.positional.iter().skip(first + 1).cloned().collect(), named: Vec::new() };
            let mut kept = Vec::new();
            for item in ops.items(value)?.iter() {
                ops.budget.step(1)?;
                let tested = match &attribute {
                    Some(attribute) => ops.path(item, attribute)?,
                    None => item.clone(),
                };
                let holds = match &test_name {
                    Some(name) => test(ops, name, &tested, &rest)?,
                    None => tested.is_true(),
                };
                if holds == wanted {
                    kept.push(item.clone());
                }
            }
            Value::list(&ops.budget, kept)
        }
        "batch" => {
            let size = count(given, 0, "linecount")?.filter(|&size| size > 0).ok_or("the size of a batch is needed")?;
            let items = ops.items(value)?;
            let mut batches = Vec::new();
            for batch in items.chunks(size) {
                let mut batch = batch.to_vec();
                if let Some(fill) = given.get(1, "fill_with") {
                    ops.budget.check((size - batch.len()).saturating_mul(size_of::<Value>()))?;
                    batch.resize(size, fill.clone());
                }
                batches.push(Value::list(&ops.budget, batch)?);
            }
            Value::list(&ops.budget, batches)
        }
        "indent" => {
            let text = as_text(ops)?;
            let width = count(given, 0, "width")?.unwrap_or(4);
            if width > MOST_INDENT {
                return Err(format!("{width} blanks; {MOST_INDENT} are supported"));
            }
            let (first, blank) = (is(1, "first"), is(2, "blank"));
            ops.budget.check(text.len() + (text.matches('\n').count() + 1) * width)?;
            let mut indented = String::new();
            for (i, line) in text.split('\n').enumerate() {
                indented.push_str(if i > 0 { "\n" } else { "" });
                if if i == 0 { first } else { blank || !line.is_empty() } {
                    indented.extend(std::iter::repeat_n(' ', width));
                }
                indented.push_str(line);
            }
            ops.text(indented)
        }
        "tojson" => {
            let indent = count(given, 1, "indent")?;
            if indent.is_some_and(|indent| indent > MOST_INDENT) {
                return Err(format!("an indent of more than {MOST_INDENT}"));
            }
            let (comma, colon) = match given.get(2, "separators") {
                None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }, ": "),
                Some(Value::List(both)) => match both.as_slice() {
                    [Value::Str(comma), Value::Str(colon)] => (comma.as_str(), colon.as_str()),
                    _ => return Err("separators are two strings".into()),
                },
                Some(_) => return Err("separators are two strings".into()),
            };
            let json = Json { indent, comma, colon, sorted: is(3, "sort_keys"), ascii: is(0, "ensure_ascii") };
            let mut text = Output::new(&ops.budget);
            json.write(value, &mut text, 0)?;
            ops.text(text.into_text())
        }
        "int" => {
            let default = given.get(0, "default").cloned().unwrap_or(Value::Int(0));
            if given.get(1, "base").is_some_and(|base| base.as_int() != Some(10)) {
                return Err("only numbers of base 10 are read".into());
            }
            Ok(match value {
                Value::Float(value) if value.is_finite() && value.abs() < 9e18 => Value::Int(*value as i64),
                Value::Str(text) => {
                    let text = text.trim();
                    let float =
                        || text.parse::<f64>().ok().filter(|value| value.is_finite() && value.abs() < 9e18).map(|value| value as i64);
                    text.parse().ok().or_else(float).map_or(default, Value::Int)
                }
                other => other.as_int().map_or(default, Value::Int),
            })
        }
        "float" => {
            let default = given.get(0, "default").cloned().unwrap_or(Value::Float(0.0));
            let parsed = value.as_str().map_or(value.as_float(), |text| text.trim().parse().ok());
            Ok(parsed.map_or(default, Value::Float))
        }
        "abs" => match value {
            Value::Float(value) => Ok(Value::Float(value.abs())),
            other => other.as_int().and_then(i64::checked_abs).map(Value::Int).ok_or_else(|| format!("of {}", other.kind())),
        },
        "round" => {
            let digits = given.get(0, "precision").and_then(Value::as_int).unwrap_or(0).clamp(-300, 300);
            let value = value.as_float().ok_or_else(|| format!("of {}", value.kind()))?;
            let scale = 10f64.powi(digits as i32);
            let rounded = match string(given, 1, "method")?.unwrap_or("common") {
                "ceil" => (value * scale).ceil() / scale,
                "floor" => (value * scale).floor() / scale,
                "common" => format!("{value:.*}", usize::try_from(digits).unwrap_or(0)).parse().unwrap_or(value),
                other => return Err(format!("there is no method `{other}`")),
            };
            Ok(Value::Float(rounded))
        }
        _ => Err("is no filter of chat templates".into()),
    }
}

/// What filters compare elements by.
struct Key<'a> {
    attribute: Option<&'a Value>,
    case_sensitive: bool,
}

impl Key<'_> {
    fn of(&self, ops: &Ops, item: &Value) -> Result<Value> {
        ops.budget.step(1)?;
        let key = match self.attribute {
            Some(attribute) => ops.path(item, attribute)?,
            None => item.clone(),
        };
        match &key {
            Value::Str(text) if !self.case_sensitive => {
                ops.budget.check(3 * text.len())?;
                ops.text(text.to_lowercase())
            }
            _ => Ok(key),
        }
    }
}

/// Sorts by numbers or by strings. That all have an order is checked first: a sort may panic where some have none.
fn sorted(ops: &Ops, items: Vec<Value>, by: &Key<'_>, reverse: bool) -> Result<Value> {
    let (mut texts, mut numbers) = (Vec::new(), Vec::new());
    for item in items {
        let key = by.of(ops, &item)?;
        match (key.as_float(), key) {
            (_, Value::Str(text)) => texts.push((text, item)),
            (Some(number), _) if !number.is_nan() => numbers.push((number, item)),
            (_, key) => return Err(format!("{} has no order", key.kind())),
        }
    }
    let (longest, count) = (texts.iter().map(|(text, _)| text.len()).max().unwrap_or(0), texts.len() + numbers.len());
    ops.budget.step(count.saturating_mul((1 + longest / 16) * (1 + count.max(1).ilog2() as usize)))?;
    let ordered = |order: Ordering| if reverse { order.reverse() } else { order };
    let items: Vec<Value> = match (texts.is_empty(), numbers.is_empty()) {
        (false, false) => return Err("strings and numbers have no order".into()),
        (false, true) => {
            texts.sort_by(|(a, _), (b, _)| ordered(a.as_str().cmp(b)));
            texts.into_iter().map(|(_, item)| item).collect()
        }
        _ => {
            numbers.sort_by(|(a, _), (b, _)| ordered(a.total_cmp(b)));
            numbers.into_iter().map(|(_, item)| item).collect()
        }
    };
    Value::list(&ops.budget, items)
}

pub fn test(ops: &Ops, name: &str, value: &Value, given: &Given) -> Result<bool> {
    ops.visit(value, given)?;
    let compares = ["divisibleby", "eq", "equalto", "sameas", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge", "in"];
    given.at_most(usize::from(compares.contains(&name)), &[])?;
    let argument = || given.get(0, "").ok_or_else(|| "a value to compare with is needed".to_owned());
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "sequence" => matches!(value, Value::List(_) | Value::Str(_) | Value::Map(_)),
        "iterable" => matches!(value, Value::List(_) | Value::Str(_) | Value::Map(_) | Value::Undefined),
        "callable" => matches!(value, Value::Function(_) | Value::Macro(_) | Value::Method(..)),
        "odd" | "even" => (value.as_int().ok_or_else(|| format!("of {}", value.kind()))?.rem_euclid(2) == 1) == (name == "odd"),
        "divisibleby" => {
            let (value, by) = (value.as_int(), argument()?.as_int());
            match (value, by) {
                (Some(value), Some(by)) if by != 0 => value.checked_rem(by).unwrap_or(0) == 0,
                _ => return Err("two numbers are needed, the second not 0".into()),
            }
        }
        "lower" | "upper" => {
            let text = ops.written(value)?;
            ops.budget.check(3 * text.len())?;
            let changed = if name == "lower" { text.to_lowercase() } else { text.to_uppercase() };
            changed == text && text.chars().any(char::is_alphabetic)
        }
        "eq" | "equalto" | "sameas" => ops.compares("==", value, argument()?)?,
        "ne" => ops.compares("!=", value, argument()?)?,
        "lt" | "lessthan" => ops.compares("<", value, argument()?)?,
        "le" => ops.compares("<=", value, argument()?)?,
        "gt" | "greaterthan" => ops.compares(">", value, argument()?)?,
        "ge" => ops.compares(">=", value, argument()?)?,
        "in" => ops.compares("in", value, argument()?)?,
        _ => return Err("is no test of chat templates".into()),
    })
}
