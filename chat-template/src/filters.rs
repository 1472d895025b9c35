//! Filters.

use crate::{
    json::Json,
    limits::MAX_INDENT,
    ops::{Given, Ops},
    strings::{self, capitalized},
    tests_and_functions::{method, test},
    value::{Output, Value},
};
use std::cmp::Ordering;

type Result<T> = std::result::Result<T, String>;

/// What a filter takes, in the order of its positions; none for one whose arguments are those of
/// what it calls, and for what is no filter.
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
        "title" | "upper" | "lower" | "capitalize" | "string" | "safe" | "escape" | "e"
        | "forceescape" | "length" | "count" | "list" | "first" | "last" | "items" | "reverse"
        | "abs" => &[],
        _ => return None,
    })
}

pub fn filter(ops: &Ops, name: &str, value: &Value, given: &Given) -> Result<Value> {
    ops.visit(value, given)?;
    if let Some(parameters) = parameters(name) {
        given.at_most(parameters.len(), parameters)?;
    }
    // What is undefined is an empty string, or list, to most.
    let as_text = || ops.written(value);
    match name {
        "default" | "d" => {
            let use_default =
                matches!(value, Value::Undefined) || given.is(1, "boolean") && !value.is_true();
            let default = given.get(0, "default_value").cloned();
            if use_default { default.map_or_else(|| ops.text(""), Ok) } else { Ok(value.clone()) }
        }
        "trim" => strings::strip(ops, &as_text()?, "strip", given.string(0, "chars")?),
        "title" => title(ops, &as_text()?),
        "upper" | "lower" | "capitalize" => {
            strings::method(ops, &as_text()?, name, &Given::default())
        }
        "string" | "safe" => ops.text(as_text()?),
        "escape" | "e" | "forceescape" => escape(ops, &as_text()?),
        "replace" => strings::replace(ops, &as_text()?, given),
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
            let separator = given.string(0, "d")?.unwrap_or("").to_owned();
            strings::join(ops, value, &separator, given.get(1, "attribute"))
        }
        "items" => match value {
            Value::Undefined => Value::list(&ops.budget, Vec::new()),
            other => method(ops, other, "items", &Given::default()),
        },
        "dictsort" => dictsort(ops, value, given),
        "sort" => {
            let by = Key {
                attribute: given.get(2, "attribute"),
                case_sensitive: given.is(1, "case_sensitive"),
            };
            sorted(ops, ops.items(value)?.to_vec(), &by, given.is(0, "reverse"))
        }
        "reverse" => match value {
            Value::Str(text) => {
                ops.budget.check(text.len())?;
                ops.text(text.chars().rev().collect::<String>())
            }
            value => Value::list(&ops.budget, ops.items(value)?.iter().rev().cloned().collect()),
        },
        "unique" => unique(ops, value, given),
        "min" | "max" => extreme(ops, name, value, given),
        "sum" => sum(ops, value, given),
        "map" => map(ops, value, given),
        "select" | "reject" | "selectattr" | "rejectattr" => select(ops, name, value, given),
        "batch" => batch(ops, value, given),
        "indent" => indent(ops, &as_text()?, given),
        "tojson" => to_json(ops, value, given),
        "int" => int(value, given),
        "float" => {
            let default = given.get(0, "default").cloned().unwrap_or(Value::Float(0.0));
            let parsed = value.as_str().map_or(value.as_float(), |text| text.trim().parse().ok());
            Ok(parsed.map_or(default, Value::Float))
        }
        "abs" => match value {
            Value::Float(value) => Ok(Value::Float(value.abs())),
            other => other
                .as_int()
                .and_then(i64::checked_abs)
                .map(Value::Int)
                .ok_or_else(|| format!("of {}", other.kind())),
        },
        "round" => round(value, given),
        _ => Err("is no filter of chat templates".into()),
    }
}

/// Words, unlike those of the method, begin after white space, brackets and hyphens only.
fn title(ops: &Ops, text: &str) -> Result<Value> {
    ops.budget.check(3 * text.len())?;
    let words = text.split_inclusive(|c: char| c.is_whitespace() || "-({[<".contains(c));
    ops.text(words.map(capitalized).collect::<String>())
}

fn escape(ops: &Ops, text: &str) -> Result<Value> {
    ops.budget.check(6 * text.len())?;
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    ops.text(escaped.replace('\'', "&#39;").replace('"', "&#34;"))
}

fn indent(ops: &Ops, text: &str, given: &Given) -> Result<Value> {
    let width = given.count(0, "width")?.unwrap_or(4);
    if width > MAX_INDENT {
        return Err(format!("{width} blanks; {MAX_INDENT} are supported"));
    }
    let (first, blank) = (given.is(1, "first"), given.is(2, "blank"));
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

fn to_json(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let indent = given.count(1, "indent")?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(format!("an indent of more than {MAX_INDENT}"));
    }
    let (comma, colon) = match given.get(2, "separators") {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }, ": "),
        Some(Value::List(both)) => match both.as_slice() {
            [Value::Str(comma), Value::Str(colon)] => (comma.as_str(), colon.as_str()),
            _ => return Err("separators are two strings".into()),
        },
        Some(_) => return Err("separators are two strings".into()),
    };
    let json = Json {
        indent,
        comma,
        colon,
        sorted: given.is(3, "sort_keys"),
        ascii: given.is(0, "ensure_ascii"),
    };
    let mut text = Output::new(&ops.budget);
    json.write(value, &mut text, 0)?;
    ops.text(text.into_text())
}

fn int(value: &Value, given: &Given) -> Result<Value> {
    let default = given.get(0, "default").cloned().unwrap_or(Value::Int(0));
    if given.get(1, "base").is_some_and(|base| base.as_int() != Some(10)) {
        return Err("only numbers of base 10 are read".into());
    }
    Ok(match value {
        Value::Float(value) if value.is_finite() && value.abs() < 9e18 => Value::Int(*value as i64),
        Value::Str(text) => {
            let text = text.trim();
            let float = || {
                text.parse::<f64>()
                    .ok()
                    .filter(|value| value.is_finite() && value.abs() < 9e18)
                    .map(|value| value as i64)
            };
            text.parse().ok().or_else(float).map_or(default, Value::Int)
        }
        other => other.as_int().map_or(default, Value::Int),
    })
}

fn round(value: &Value, given: &Given) -> Result<Value> {
    let digits = given.get(0, "precision").and_then(Value::as_int).unwrap_or(0).clamp(-300, 300);
    let value = value.as_float().ok_or_else(|| format!("of {}", value.kind()))?;
    let scale = 10f64.powi(digits as i32);
    let rounded = match given.string(1, "method")?.unwrap_or("common") {
        "ceil" => (value * scale).ceil() / scale,
        "floor" => (value * scale).floor() / scale,
        "common" => {
            format!("{value:.*}", usize::try_from(digits).unwrap_or(0)).parse().unwrap_or(value)
        }
        other => return Err(format!("there is no method `{other}`")),
    };
    Ok(Value::Float(rounded))
}

fn dictsort(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let Value::Map(entries) = value else {
        return Err(format!("{} is no dictionary", value.kind()));
    };
    let by = match given.string(1, "by")?.unwrap_or("key") {
        "key" => 0,
        "value" => 1,
        other => return Err(format!("by `{other}`")),
    };
    let pair =
        |(key, value): &(Value, Value)| Value::tuple(&ops.budget, vec![key.clone(), value.clone()]);
    let pairs = entries.iter().map(pair).collect::<Result<Vec<_>>>()?;
    let by =
        Key { attribute: Some(&Value::Int(by)), case_sensitive: given.is(0, "case_sensitive") };
    sorted(ops, pairs, &by, given.is(2, "reverse"))
}

fn unique(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let by =
        Key { attribute: given.get(1, "attribute"), case_sensitive: given.is(0, "case_sensitive") };
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

/// The least or the greatest element.
fn extreme(ops: &Ops, name: &str, value: &Value, given: &Given) -> Result<Value> {
    let by =
        Key { attribute: given.get(1, "attribute"), case_sensitive: given.is(0, "case_sensitive") };
    let mut best: Option<(Value, Value)> = None;
    for item in ops.items(value)?.iter() {
        let key = by.of(ops, item)?;
        let better = match &best {
            Some((best, _)) => {
                key.compare(best, &ops.budget)?
                    == if name == "min" { Ordering::Less } else { Ordering::Greater }
            }
            None => true,
        };
        if better {
            best = Some((key, item.clone()));
        }
    }
    Ok(best.map_or(Value::Undefined, |(_, item)| item))
}

fn sum(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
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

/// An attribute of each element, or what a filter makes of it.
fn map(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let mut mapped = Vec::new();
    // Beyond the arguments there are: by name only.
    let attribute = given.get(usize::MAX, "attribute");
    if attribute.is_some() {
        given.at_most(0, &["attribute", "default"])?;
    }
    for item in ops.items(value)?.iter() {
        ops.budget.step(1)?;
        mapped.push(match attribute {
            Some(attribute) => match (ops.path(item, attribute)?, given.get(usize::MAX, "default"))
            {
                (Value::Undefined, Some(default)) => default.clone(),
                (found, _) => found,
            },
            None => {
                let name = given.string(0, "")?.ok_or("the name of a filter is needed")?.to_owned();
                if name == "map" {
                    return Err("maps of maps are not supported".into());
                }
                let rest = Given {
                    positional: given.positional[1..].to_vec(),
                    named: given.named.clone(),
                };
                filter(ops, &name, item, &rest)?
            }
        });
    }
    Value::list(&ops.budget, mapped)
}

/// The elements, or those with an attribute, for which a test holds, or does not.
fn select(ops: &Ops, name: &str, value: &Value, given: &Given) -> Result<Value> {
    given.at_most(usize::MAX, &[])?;
    let by_attribute = name.ends_with("attr");
    let (first, wanted) = (usize::from(by_attribute), name.starts_with("select"));
    let attribute = if by_attribute {
        Some(given.get(0, "").ok_or("an attribute is needed")?.clone())
    } else {
        None
    };
    let test_name = given.string(first, "")?.map(str::to_owned);
    let rest = Given {
        positional: given.positional.iter().skip(first + 1).cloned().collect(),
        named: Vec::new(),
    };
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

fn batch(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let size = given
        .count(0, "linecount")?
        .filter(|&size| size > 0)
        .ok_or("the size of a batch is needed")?;
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

/// Sorts by numbers or by strings. That all have an order is checked first: a sort may panic where
/// some have none.
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
    let (longest, count) =
        (texts.iter().map(|(text, _)| text.len()).max().unwrap_or(0), texts.len() + numbers.len());
    ops.budget
        .step(count.saturating_mul((1 + longest / 16) * (1 + count.max(1).ilog2() as usize)))?;
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
