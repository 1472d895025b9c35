//! Filters.

use crate::{
    budget::Output,
    format,
    json::Json,
    limits::MAX_INDENT,
    operators,
    ops::{Given, Ops},
    sorting, strings,
    tests_and_functions::{method, test},
    text_filters as texts,
    value::{Shape, Value},
};

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
        "groupby" => &["attribute", "default", "case_sensitive"],
        "unique" | "min" | "max" => &["case_sensitive", "attribute"],
        "sum" => &["attribute", "start"],
        "batch" => &["linecount", "fill_with"],
        "slice" => &["slices", "fill_with"],
        "indent" => &["width", "first", "blank"],
        "truncate" => &["length", "killwords", "end", "leeway"],
        "wordwrap" => &["width", "break_long_words", "wrapstring", "break_on_hyphens"],
        "center" => &["width"],
        "attr" => &["name"],
        "tojson" => &["ensure_ascii", "indent", "separators", "sort_keys"],
        "int" => &["default", "base"],
        "float" => &["default"],
        "round" => &["precision", "method"],
        "title" | "upper" | "lower" | "capitalize" | "string" | "safe" | "escape" | "e"
        | "forceescape" | "length" | "count" | "list" | "first" | "last" | "items" | "reverse"
        | "abs" | "wordcount" | "urlencode" => &[],
        _ => return None,
    })
}

pub fn filter(ops: &Ops, name: &str, value: &Value, given: &Given) -> Result<Value> {
    ops.visit(value, given)?;
    if let Some(parameters) = parameters(name) {
        given.at_most(parameters.len(), parameters)?;
    }
    match name {
        "default" | "d" => {
            let use_default =
                matches!(value, Value::Undefined) || given.is(1, "boolean") && !value.is_true();
            let default = given.get(0, "default_value").cloned();
            if use_default { default.map_or_else(|| ops.text(""), Ok) } else { Ok(value.clone()) }
        }
        "trim" | "title" | "upper" | "lower" | "capitalize" | "string" | "safe" | "escape"
        | "e" | "forceescape" | "replace" | "indent" | "wordcount" | "wordwrap" | "center"
        | "format" => text_filter(ops, name, value, given),
        "truncate" => texts::truncate(ops, value, given),
        "urlencode" => texts::url_encode(ops, value),
        "length" | "count" => length(value),
        "list" => match value {
            Value::List(items) if items.shape() == Shape::List => Ok(value.clone()),
            Value::List(items) => Value::list(&ops.budget, items.to_vec()),
            value => Ok(Value::List(ops.items(value)?)),
        },
        "first" => ops.first(value),
        "last" => match value {
            Value::Generator(_) => Err("a generator has no last element; `| list` has".into()),
            value => Ok(ops.items(value)?.last().cloned().unwrap_or(Value::Undefined)),
        },
        "reverse" => reverse(ops, value),
        "join" => {
            let separator = given.get(0, "d").map(|it| ops.written(it)).transpose()?;
            let separator = separator.unwrap_or_default();
            strings::join(ops, value, &separator, given.some(1, "attribute"))
        }
        "items" => match value {
            Value::Undefined => Value::generator(&ops.budget, Vec::new()),
            other => {
                let view = method(ops, other, "items", &Given::default())?;
                Value::generator(&ops.budget, ops.items(&view)?.to_vec())
            }
        },
        "attr" => match given.string(0, "name")?.ok_or("a name is needed")? {
            _ if matches!(value, Value::Map(_)) => Ok(Value::Undefined),
            name => ops.attribute(value, name),
        },
        "dictsort" => sorting::dict_sort(ops, value, given),
        "sort" => sorting::sort(ops, value, given),
        "groupby" => sorting::group_by(ops, value, given),
        "unique" => sorting::unique(ops, value, given),
        "min" | "max" => sorting::extreme(ops, name, value, given),
        "sum" => sum(ops, value, given),
        "map" => map(ops, value, given),
        "select" | "reject" | "selectattr" | "rejectattr" => select(ops, name, value, given),
        "batch" => batch(ops, value, given),
        "slice" => slice(ops, value, given),
        "tojson" => to_json(ops, value, given),
        "int" => int(value, given),
        "float" => float(value, given),
        "abs" => abs(value),
        "round" => round(value, given),
        _ => Err("is no filter of chat templates".into()),
    }
}

/// Filters of a value's text. What is undefined is an empty one.
fn text_filter(ops: &Ops, name: &str, value: &Value, given: &Given) -> Result<Value> {
    let text = ops.written(value)?;
    match name {
        "trim" => strings::strip(ops, &text, "strip", given.string(0, "chars")?),
        "title" => texts::title(ops, &text),
        "upper" | "lower" | "capitalize" => strings::method(ops, &text, name, &Given::default()),
        "escape" | "e" | "forceescape" => texts::escape(ops, &text),
        "replace" => {
            // Unlike the method, the filter takes any values.
            let written = |at: usize, name: &str| -> Result<Option<Value>> {
                given.get(at, name).map(|value| ops.text(ops.written(value)?)).transpose()
            };
            let positional = [written(0, "old")?, written(1, "new")?].into_iter().flatten();
            let count = given.get(2, "count").cloned();
            let positional = positional.chain(count).collect();
            strings::replace(ops, &text, &Given { positional, named: Vec::new() })
        }
        "indent" => texts::indent(ops, &text, given),
        "wordcount" => Ok(texts::word_count(&text)),
        "wordwrap" => texts::word_wrap(ops, &text, given),
        "center" => texts::center(ops, &text, given),
        "format" => {
            if !given.named.is_empty() && !given.positional.is_empty() {
                return Err("values have names, or all have none".into());
            }
            let named = |(name, value): &(String, Value)| {
                Ok::<_, String>((ops.text(name.as_str())?, value.clone()))
            };
            let entries = given.named.iter().map(named).collect::<Result<Vec<_>>>()?;
            let entries = (!entries.is_empty()).then(|| Value::map(&ops.budget, entries));
            let entries = entries.transpose()?.as_ref().and_then(format::entries);
            ops.text(format::percent(ops, &text, &given.positional, entries)?)
        }
        _ => ops.text(text),
    }
}

fn length(value: &Value) -> Result<Value> {
    Ok(Value::Int(match value {
        Value::Str(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(items) => items.len(),
        Value::Map(entries) => entries.len(),
        Value::Undefined => 0,
        other => return Err(format!("{} has no length", other.kind())),
    } as i64))
}

fn reverse(ops: &Ops, value: &Value) -> Result<Value> {
    match value {
        Value::Str(text) => {
            ops.budget.check(text.len())?;
            ops.text(text.chars().rev().collect::<String>())
        }
        Value::Generator(_) => Err("a generator has no reverse; `| list` has".into()),
        value => Value::generator(&ops.budget, ops.items(value)?.iter().rev().cloned().collect()),
    }
}

fn abs(value: &Value) -> Result<Value> {
    match value {
        Value::Float(value) => Ok(Value::Float(value.abs())),
        other => {
            let absolute = other.as_int().and_then(i64::checked_abs);
            absolute.map(Value::Int).ok_or_else(|| format!("of {}", other.kind()))
        }
    }
}

fn float(value: &Value, given: &Given) -> Result<Value> {
    let default = given.get(0, "default").cloned().unwrap_or(Value::Float(0.0));
    let parsed = match value {
        Value::Undefined => return Err("of an undefined value".into()),
        Value::Str(text) => decimal(text),
        other => other.as_float(),
    };
    Ok(parsed.map_or(default, Value::Float))
}

/// Reads a number as Python does, with `_` between digits.
fn decimal(text: &str) -> Option<f64> {
    let text = text.trim_matches(strings::is_space);
    let misplaced = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    if misplaced { None } else { text.replace('_', "").parse().ok() }
}

fn to_json(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let indent = given.count(1, "indent")?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(format!("an indent of more than {MAX_INDENT}"));
    }
    let (comma, colon) = match given.get(2, "separators") {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }, ": "),
        Some(Value::List(both)) if !matches!(both.shape(), Shape::View(_)) => match both.as_slice()
        {
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
    let base = given.get(1, "base").map_or(Some(10), Value::as_int).unwrap_or(-1);
    let truncated = |value: f64| {
        let within = value.is_finite() && value.abs() < 9e18;
        within.then_some(value as i64)
    };
    let parsed = match value {
        Value::Undefined => return Err("of an undefined value".into()),
        Value::Float(value) => truncated(*value),
        Value::Str(text) => integer(text, base).or_else(|| decimal(text).and_then(truncated)),
        other => other.as_int(),
    };
    Ok(parsed.map_or(default, Value::Int))
}

/// Reads an integer of a base, which a prefix may repeat; base 0 is what the prefix says. As in
/// Jinja, one that is not from 2 to 36 has no integers.
fn integer(text: &str, base: i64) -> Option<i64> {
    let base = u32::try_from(base).ok().filter(|base| *base == 0 || (2..=36).contains(base))?;
    let text = text.trim_matches(strings::is_space).to_lowercase();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let prefixes = [("0x", 16), ("0o", 8), ("0b", 2)];
    let prefixed = prefixes.iter().find_map(|(prefix, of)| {
        let digits = digits.strip_prefix(prefix).filter(|_| base == 0 || base == *of)?;
        Some((digits.strip_prefix('_').unwrap_or(digits), *of))
    });
    let (digits, base) = prefixed.unwrap_or((digits, if base == 0 { 10 } else { base }));
    if digits.starts_with(['_', '+', '-']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    i64::from_str_radix(&[sign, &digits.replace('_', "")].concat(), base).ok()
}

fn round(value: &Value, given: &Given) -> Result<Value> {
    let digits = given.get(0, "precision").and_then(Value::as_int).unwrap_or(0).clamp(-300, 300);
    let method = given.string(1, "method")?.unwrap_or("common");
    // Python rounds integers to integers.
    if method == "common" && digits >= 0 && value.as_int().is_some() {
        return Ok(Value::Int(value.as_int().unwrap_or(0)));
    }
    let is_int = value.as_int().is_some();
    let value = value.as_float().ok_or_else(|| format!("of {}", value.kind()))?;
    let scale = 10f64.powi(digits as i32);
    let rounded = match method {
        "ceil" => (value * scale).ceil() / scale,
        "floor" => (value * scale).floor() / scale,
        "common" if digits < 0 => {
            let rounded = (value * scale).round_ties_even() / scale;
            if is_int {
                return Ok(Value::Int(rounded.round() as i64));
            }
            rounded
        }
        "common" => {
            format!("{value:.*}", usize::try_from(digits).unwrap_or(0)).parse().unwrap_or(value)
        }
        other => return Err(format!("there is no method `{other}`")),
    };
    Ok(Value::Float(rounded))
}

fn sum(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let mut sum = given.get(1, "start").cloned().unwrap_or(Value::Int(0));
    for item in ops.items(value)?.iter() {
        ops.budget.step(1)?;
        let item = match given.some(0, "attribute") {
            Some(attribute) => ops.path(item, attribute)?,
            None => item.clone(),
        };
        sum = operators::binary(ops, "+", &sum, &item)?;
    }
    Ok(sum)
}

/// An attribute of each element, or what a filter makes of it.
fn map(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let mut mapped = Vec::new();
    if !value.is_true() {
        return Value::generator(&ops.budget, mapped);
    }
    // Beyond the arguments there are: by name only.
    let attribute = given.get(usize::MAX, "attribute");
    let default = given.some(usize::MAX, "default");
    if attribute.is_some() {
        given.at_most(0, &["attribute", "default"])?;
    }
    for item in ops.items(value)?.iter() {
        ops.budget.step(1)?;
        mapped.push(match attribute {
            Some(attribute) => match (ops.path(item, attribute)?, default) {
                (Value::Undefined, Some(default)) => default.clone(),
                (found, _) => found,
            },
            None => {
                let name = given.string(0, "")?.ok_or("the name of a filter is needed")?.to_owned();
                // It would recurse without an end that the parser sees.
                if name == "map" {
                    return Err("maps of maps are not supported".into());
                }
                let rest = Given {
                    positional: given.positional.iter().skip(1).cloned().collect(),
                    named: given.named.clone(),
                };
                filter(ops, &name, item, &rest)?
            }
        });
    }
    Value::generator(&ops.budget, mapped)
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
    if !value.is_true() {
        return Value::generator(&ops.budget, kept);
    }
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
    Value::generator(&ops.budget, kept)
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
        if let Some(fill) = given.some(1, "fill_with") {
            ops.budget.check((size - batch.len()).saturating_mul(size_of::<Value>()))?;
            batch.resize(size, fill.clone());
        }
        batches.push(Value::list(&ops.budget, batch)?);
    }
    Value::generator(&ops.budget, batches)
}

/// Columns: lists of nearly equal lengths.
fn slice(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let count = given.count(0, "slices")?.filter(|&count| count > 0);
    let count = count.ok_or("the number of slices is needed")?;
    let (items, fill) = (ops.items(value)?, given.some(1, "fill_with"));
    ops.budget.check(count.saturating_mul(64 + 2 * size_of::<Value>()))?;
    let (each, more) = (items.len() / count, items.len() % count);
    let (mut slices, mut at) = (Vec::new(), 0);
    for i in 0..count {
        let end = at + each + usize::from(i < more);
        let mut slice = items[at..end].to_vec();
        slice.extend(fill.filter(|_| i >= more).cloned());
        slices.push(Value::list(&ops.budget, slice)?);
        at = end;
    }
    Value::generator(&ops.budget, slices)
}
