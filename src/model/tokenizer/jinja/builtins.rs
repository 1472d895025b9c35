//! Functions, filters, tests and methods.

use super::{
    ops::{Given, Ops},
    value::{Output, Value, find},
};
use std::{cell::RefCell, collections::HashMap, rc::Rc};

type Result<T> = std::result::Result<T, String>;

/// The longest `range`, as in Jinja's sandbox.
const MOST_RANGE: i64 = 100_000;
/// The widest indent of JSON and of lines.
const MOST_INDENT: usize = 100;

/// The name of a function that every template has.
pub fn function(name: &str) -> Option<&'static str> {
    ["namespace", "range", "dict", "raise_exception"].into_iter().find(|known| *known == name)
}

pub fn call(this: &Ops, name: &str, given: &Given) -> Result<Value> {
    match name {
        "namespace" => {
            let mut fields = HashMap::new();
            for (key, value) in pairs(this, given)? {
                // So that no namespace ever contains itself.
                value.nesting()?;
                fields.insert(this.written(&key)?, value);
            }
            Ok(Value::Namespace(Rc::new(RefCell::new(fields))))
        }
        "dict" => {
            let pairs = pairs(this, given)?.into_iter().map(|(key, value)| Ok((this.text(this.written(&key)?)?, value)));
            Value::map(&this.budget, pairs.collect::<Result<_>>()?)
        }
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
            this.budget.check(length.max(0) as usize * size_of::<Value>())?;
            Value::list(&this.budget, (0..length.max(0) as i64).map(|i| Value::Int(start + i * step)).collect())
        }
        // What the template says to people: why it refuses.
        _ => Err(given.get(0, "").map_or_else(|| Ok(String::new()), |message| this.written(message))?),
    }
}

/// The entries of a dictionary that is given, and named arguments.
fn pairs(this: &Ops, given: &Given) -> Result<Vec<(Value, Value)>> {
    if given.positional.len() > 1 {
        return Err("one dictionary at most is taken".into());
    }
    let mut all = match given.positional.first() {
        Some(Value::Map(entries)) => entries.to_vec(),
        Some(other) => return Err(format!("{} is no dictionary", other.kind())),
        None => Vec::new(),
    };
    for (name, value) in &given.named {
        all.push((this.text(name.as_str())?, value.clone()));
    }
    Ok(all)
}

pub fn method(this: &Ops, of: &Value, name: &str, given: &Given) -> Result<Value> {
    match of {
        Value::Str(text) => {
            this.budget.check(text.len())?;
            string_method(this, text, name, given)
        }
        Value::Map(entries) => {
            this.budget.step(entries.len())?;
            match name {
                "items" => {
                    let pair = |(key, value): &(Value, Value)| Value::tuple(&this.budget, vec![key.clone(), value.clone()]);
                    Value::list(&this.budget, entries.iter().map(pair).collect::<Result<_>>()?)
                }
                "keys" => Value::list(&this.budget, entries.iter().map(|(key, _)| key.clone()).collect()),
                "values" => Value::list(&this.budget, entries.iter().map(|(_, value)| value.clone()).collect()),
                _ => {
                    given.at_most(2, &[])?;
                    let found = find(entries, given.get(0, "").ok_or("a key is needed")?, &this.budget)?;
                    Ok(found.or(given.get(1, "")).cloned().unwrap_or(Value::None))
                }
            }
        }
        Value::Loop(state) if name == "cycle" => {
            let length = given.positional.len();
            if length == 0 { Err("nothing to cycle through".into()) } else { Ok(given.positional[state.index.get() % length].clone()) }
        }
        Value::Loop(state) => {
            let now = Value::list(&this.budget, given.positional.clone())?;
            let changed = match &*state.changed.borrow() {
                Some(before) => !before.equals(&now, &this.budget)?,
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

fn string_method(this: &Ops, text: &str, name: &str, given: &Given) -> Result<Value> {
    given.at_most(3, &["maxsplit", "sep"])?;
    let strings = |this: &Ops, parts: Vec<&str>| -> Result<Value> {
        this.budget.check(parts.len() * (size_of::<Value>() + 64) + text.len())?;
        let parts = parts.into_iter().map(|part| this.text(part)).collect::<Result<_>>()?;
        Value::list(&this.budget, parts)
    };
    match name {
        "upper" => this.text(text.to_uppercase()),
        "lower" => this.text(text.to_lowercase()),
        "title" => this.text(title(text)),
        "capitalize" => this.text(capitalized(text)),
        "isdigit" => Ok(Value::Bool(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))),
        "strip" | "lstrip" | "rstrip" => this.text(strip(text, name, string(given, 0, "")?)),
        "startswith" | "endswith" => {
            let one = |part: &Value| {
                let part = part.as_str().ok_or_else(|| format!("{} where a string is needed", part.kind()))?;
                Ok(if name == "startswith" { text.starts_with(part) } else { text.ends_with(part) })
            };
            match given.get(0, "").ok_or("a string is needed")? {
                Value::List(parts) => parts.iter().map(one).collect::<Result<Vec<_>>>().map(|found| Value::Bool(found.contains(&true))),
                part => one(part).map(Value::Bool),
            }
        }
        "find" => {
            let part = string(given, 0, "")?.ok_or("a string is needed")?;
            this.budget.step(text.len() / 4)?;
            Ok(Value::Int(text.find(part).map_or(-1, |at| text[..at].chars().count() as i64)))
        }
        "count" => {
            let part = string(given, 0, "")?.ok_or("a string is needed")?;
            this.budget.step(text.len() / 4)?;
            Ok(Value::Int(if part.is_empty() { text.chars().count() + 1 } else { text.matches(part).count() } as i64))
        }
        "splitlines" => strings(this, text.lines().collect()),
        "split" | "rsplit" => {
            let most = match given.get(1, "maxsplit") {
                Some(value) => value.as_int().ok_or("maxsplit is no number")?,
                None => -1,
            };
            let most = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
            this.budget.check(text.len().saturating_mul(size_of::<&str>()))?;
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
            strings(this, parts)
        }
        "replace" => replace(this, text, given),
        "join" => join(this, given.get(0, "").ok_or("a list is needed")?, text, None),
        _ => Err("is no method of a string".into()),
    }
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

fn strip(text: &str, name: &str, of: Option<&str>) -> String {
    let stripped = |c: char| of.map_or(c.is_whitespace(), |of| of.contains(c));
    let text = if name == "rstrip" { text } else { text.trim_start_matches(stripped) };
    if name == "lstrip" { text } else { text.trim_end_matches(stripped) }.to_owned()
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

fn replace(this: &Ops, text: &str, given: &Given) -> Result<Value> {
    let (from, to) =
        (string(given, 0, "old")?.ok_or("what to replace is missing")?, string(given, 1, "new")?.ok_or("what to put there is missing")?);
    let most = count(given, 2, "count")?.unwrap_or(usize::MAX);
    this.budget.step(text.len() / 4)?;
    let times = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() }.min(most);
    this.budget.check(text.len().saturating_add(times.saturating_mul(to.len())))?;
    this.text(text.replacen(from, to, most))
}

fn join(this: &Ops, items: &Value, separator: &str, attribute: Option<&Value>) -> Result<Value> {
    let (items, mut text) = (this.items(items)?, Output::new(&this.budget));
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            text.push(separator)?;
        }
        let item = match attribute {
            Some(attribute) => this.item(item, attribute)?,
            None => item.clone(),
        };
        this.budget.step(1)?;
        item.write(&mut text)?;
    }
    this.text(text.into_text())
}

pub fn filter(this: &Ops, name: &str, value: &Value, given: &Given) -> Result<Value> {
    // What is undefined is an empty string, or list, to most.
    let as_text = |this: &Ops| this.written(value);
    match name {
        "default" | "d" => {
            let use_default = matches!(value, Value::Undefined) || given.get(1, "boolean").is_some_and(Value::is_true) && !value.is_true();
            let default = given.get(0, "default_value").cloned();
            if use_default { default.map_or_else(|| this.text(""), Ok) } else { Ok(value.clone()) }
        }
        "trim" => {
            let text = as_text(this)?;
            this.text(strip(&text, "strip", string(given, 0, "chars")?))
        }
        // Words, unlike those of the method, begin after white space, brackets and hyphens only.
        "title" => {
            let text = as_text(this)?;
            this.budget.check(3 * text.len())?;
            let words = text.split_inclusive(|c: char| c.is_whitespace() || "-({[<".contains(c));
            this.text(words.map(capitalized).collect::<String>())
        }
        "upper" | "lower" | "capitalize" => {
            let text = as_text(this)?;
            this.budget.check(3 * text.len())?;
            string_method(this, &text, name, &Given::default())
        }
        "string" | "safe" => {
            let text = as_text(this)?;
            this.text(text)
        }
        "escape" | "e" | "forceescape" => {
            let text = as_text(this)?;
            this.budget.check(6 * text.len())?;
            let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            this.text(escaped.replace('\'', "&#39;").replace('"', "&#34;"))
        }
        "replace" => {
            let text = as_text(this)?;
            replace(this, &text, given)
        }
        "length" | "count" => Ok(Value::Int(match value {
            Value::Str(text) => {
                this.budget.step(text.len() / 16)?;
                text.chars().count()
            }
            Value::List(items) => items.len(),
            Value::Map(entries) => entries.len(),
            Value::Undefined => 0,
            other => return Err(format!("{} has no length", other.kind())),
        } as i64)),
        "list" => Ok(Value::List(this.items(value)?)),
        "first" => Ok(this.items(value)?.first().cloned().unwrap_or(Value::Undefined)),
        "last" => Ok(this.items(value)?.last().cloned().unwrap_or(Value::Undefined)),
        "join" => {
            let separator = string(given, 0, "d")?.unwrap_or("").to_owned();
            join(this, value, &separator, given.get(1, "attribute"))
        }
        "items" => match value {
            Value::Undefined => Value::list(&this.budget, Vec::new()),
            other => method(this, other, "items", &Given::default()),
        },
        "dictsort" => {
            let Value::Map(entries) = value else { return Err(format!("{} is no dictionary", value.kind())) };
            let pair = |(key, value): &(Value, Value)| Value::tuple(&this.budget, vec![key.clone(), value.clone()]);
            let pairs = entries.iter().map(pair).collect::<Result<Vec<_>>>()?;
            sorted(this, pairs, Some(&Value::Int(0)), true, given.get(2, "reverse").is_some_and(Value::is_true))
        }
        "sort" => {
            let items = this.items(value)?.to_vec();
            let reverse = given.get(0, "reverse").is_some_and(Value::is_true);
            sorted(this, items, given.get(2, "attribute"), !given.get(1, "case_sensitive").is_some_and(Value::is_true), reverse)
        }
        "reverse" => match value {
            Value::Str(text) => {
                this.budget.check(text.len())?;
                this.text(text.chars().rev().collect::<String>())
            }
            value => Value::list(&this.budget, this.items(value)?.iter().rev().cloned().collect()),
        },
        "unique" => {
            let mut kept: Vec<Value> = Vec::new();
            'items: for item in this.items(value)?.iter() {
                for known in &kept {
                    if known.equals(item, &this.budget)? {
                        continue 'items;
                    }
                }
                kept.push(item.clone());
            }
            Value::list(&this.budget, kept)
        }
        "min" | "max" => {
            let items = this.items(value)?;
            let mut best = items.first().cloned().unwrap_or(Value::Undefined);
            for item in items.iter().skip(1) {
                let order = item.compare(&best, &this.budget)?;
                if if name == "min" { order.is_lt() } else { order.is_gt() } {
                    best = item.clone();
                }
            }
            Ok(best)
        }
        "sum" => {
            let mut sum = given.get(1, "start").cloned().unwrap_or(Value::Int(0));
            for item in this.items(value)?.iter() {
                let item = match given.get(0, "attribute") {
                    Some(attribute) => this.item(item, attribute)?,
                    None => item.clone(),
                };
                sum = this.binary("+", &sum, &item)?;
            }
            Ok(sum)
        }
        "map" => {
            let mut mapped = Vec::new();
            let attribute = given.named.iter().find(|(known, _)| known == "attribute").map(|(_, value)| value.clone());
            let default = given.named.iter().find(|(known, _)| known == "default").map(|(_, value)| value.clone());
            for item in this.items(value)?.iter() {
                this.budget.step(1)?;
                mapped.push(match &attribute {
                    Some(attribute) => match (this.item(item, attribute)?, &default) {
                        (Value::Undefined, Some(default)) => default.clone(),
                        (found, _) => found,
                    },
                    None => {
                        let name = string(given, 0, "")?.ok_or("the name of a filter is needed")?.to_owned();
                        if name == "map" {
                            return Err("maps of maps are not supported".into());
                        }
                        let rest = Given { positional: given.positional[1..].to_vec(), named: given.named.clone() };
                        filter(this, &name, item, &rest)?
                    }
                });
            }
            Value::list(&this.budget, mapped)
        }
        "select" | "reject" | "selectattr" | "rejectattr" => {
            let by_attribute = name.ends_with("attr");
            let (first, wanted) = (usize::from(by_attribute), name.starts_with("select"));
            let attribute = if by_attribute { Some(given.get(0, "").ok_or("an attribute is needed")?.clone()) } else { None };
            let test_name = string(given, first, "")?.map(str::to_owned);
            let rest = Given { positional: given.positional.iter().skip(first + 1).cloned().collect(), named: Vec::new() };
            let mut kept = Vec::new();
            for item in this.items(value)?.iter() {
                this.budget.step(1)?;
                let tested = match &attribute {
                    Some(attribute) => this.item(item, attribute)?,
                    None => item.clone(),
                };
                let holds = match &test_name {
                    Some(name) => test(this, name, &tested, &rest)?,
                    None => tested.is_true(),
                };
                if holds == wanted {
                    kept.push(item.clone());
                }
            }
            Value::list(&this.budget, kept)
        }
        "batch" => {
            let size = count(given, 0, "linecount")?.filter(|&size| size > 0).ok_or("the size of a batch is needed")?;
            let items = this.items(value)?;
            let mut batches = Vec::new();
            for batch in items.chunks(size) {
                let mut batch = batch.to_vec();
                if let Some(fill) = given.get(1, "fill_with") {
                    this.budget.check((size - batch.len()).saturating_mul(size_of::<Value>()))?;
                    batch.resize(size, fill.clone());
                }
                batches.push(Value::list(&this.budget, batch)?);
            }
            Value::list(&this.budget, batches)
        }
        "indent" => {
            let text = as_text(this)?;
            let width = count(given, 0, "width")?.unwrap_or(4);
            if width > MOST_INDENT {
                return Err(format!("{width} blanks; {MOST_INDENT} are supported"));
            }
            let (first, blank) = (given.get(1, "first").is_some_and(Value::is_true), given.get(2, "blank").is_some_and(Value::is_true));
            this.budget.check(text.len() + (text.matches('\n').count() + 1) * width)?;
            let mut indented = String::new();
            for (i, line) in text.split('\n').enumerate() {
                indented.push_str(if i > 0 { "\n" } else { "" });
                if if i == 0 { first } else { blank || !line.is_empty() } {
                    indented.extend(std::iter::repeat_n(' ', width));
                }
                indented.push_str(line);
            }
            this.text(indented)
        }
        "tojson" => {
            let mut text = Output::new(&this.budget);
            let indent = count(given, 3, "indent")?;
            if indent.is_some_and(|indent| indent > MOST_INDENT) {
                return Err(format!("an indent of more than {MOST_INDENT}"));
            }
            value.write_json(&mut text, indent, 0)?;
            this.text(text.into_text())
        }
        "int" => {
            let default = given.get(0, "default").cloned().unwrap_or(Value::Int(0));
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
                _ => format!("{value:.*}", usize::try_from(digits).unwrap_or(0)).parse().unwrap_or(value),
            };
            Ok(Value::Float(rounded))
        }
        _ => Err("is no filter of chat templates".into()),
    }
}

/// Sorts by numbers or by strings. That all have an order is checked first: a sort may panic where some have none.
fn sorted(this: &Ops, items: Vec<Value>, attribute: Option<&Value>, fold_case: bool, reverse: bool) -> Result<Value> {
    let (mut texts, mut numbers) = (Vec::new(), Vec::new());
    for item in items {
        let key = match attribute {
            Some(attribute) => this.item(&item, attribute)?,
            None => item.clone(),
        };
        match (&key, key.as_float()) {
            (Value::Str(text), _) => {
                this.budget.check(4 * text.len())?;
                texts.push((if fold_case { text.to_lowercase() } else { text.to_string() }, item));
            }
            (_, Some(number)) if !number.is_nan() => numbers.push((number, item)),
            _ => return Err(format!("{} has no order", key.kind())),
        }
    }
    let longest = texts.iter().map(|(text, _)| text.len()).max().unwrap_or(0);
    let (count, bytes) = (texts.len() + numbers.len(), texts.iter().map(|(text, _)| text.len()).sum());
    this.budget.check(bytes)?;
    this.budget.step(count.saturating_mul((1 + longest / 16) * (1 + count.max(1).ilog2() as usize)))?;
    let ordered = |order: std::cmp::Ordering| if reverse { order.reverse() } else { order };
    let items: Vec<Value> = match (texts.is_empty(), numbers.is_empty()) {
        (false, false) => return Err("strings and numbers have no order".into()),
        (false, true) => {
            texts.sort_by(|(a, _), (b, _)| ordered(a.cmp(b)));
            texts.into_iter().map(|(_, item)| item).collect()
        }
        _ => {
            numbers.sort_by(|(a, _), (b, _)| ordered(a.total_cmp(b)));
            numbers.into_iter().map(|(_, item)| item).collect()
        }
    };
    Value::list(&this.budget, items)
}

pub fn test(this: &Ops, name: &str, value: &Value, given: &Given) -> Result<bool> {
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
            let text = this.written(value)?;
            let changed = if name == "lower" { text.to_lowercase() } else { text.to_uppercase() };
            changed == text && text.chars().any(char::is_alphabetic)
        }
        "eq" | "equalto" | "sameas" => this.compares("==", value, argument()?)?,
        "ne" => this.compares("!=", value, argument()?)?,
        "lt" | "lessthan" => this.compares("<", value, argument()?)?,
        "le" => this.compares("<=", value, argument()?)?,
        "gt" | "greaterthan" => this.compares(">", value, argument()?)?,
        "ge" => this.compares(">=", value, argument()?)?,
        "in" => this.compares("in", value, argument()?)?,
        _ => return Err("is no test of chat templates".into()),
    })
}
