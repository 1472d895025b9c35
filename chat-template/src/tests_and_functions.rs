//! Functions, methods and tests.

use crate::{
    limits::MAX_RANGE,
    operators,
    ops::{Given, Ops},
    strings,
    value::{Items, Namespace, Shape, Value, find},
};
use std::rc::Rc;

type Result<T> = std::result::Result<T, String>;

/// The name of a function that every template has.
pub fn function(name: &str) -> Option<&'static str> {
    let known = ["namespace", "range", "dict", "raise_exception", "strftime_now"];
    known.into_iter().find(|known| *known == name)
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
                given
                    .get(at, "")
                    .map(|value| {
                        value.as_int().ok_or_else(|| format!("{} is no number", value.kind()))
                    })
                    .transpose()
            };
            let (start, end) = match (number(0)?, number(1)?) {
                (Some(end), None) => (0, end),
                (Some(start), Some(end)) => (start, end),
                _ => return Err("one number to three are needed".into()),
            };
            let step = number(2)?.unwrap_or(1);
            let length = match step {
                0 => return Err("steps of 0".into()),
                step if step > 0 => {
                    (i128::from(end) - i128::from(start) + i128::from(step) - 1) / i128::from(step)
                }
                step => {
                    (i128::from(start) - i128::from(end) - i128::from(step) - 1) / -i128::from(step)
                }
            };
            if length > i128::from(MAX_RANGE) {
                return Err(format!("{length} numbers; {MAX_RANGE} are supported"));
            }
            ops.budget.check(length.max(0) as usize * size_of::<Value>())?;
            Value::list(
                &ops.budget,
                // The product may be beyond 64 bits where the sum is not.
                (0..length.max(0) as i64)
                    .map(|i| Value::Int(start.wrapping_add(i.wrapping_mul(step))))
                    .collect(),
            )
        }
        "strftime_now" => {
            given.at_most(1, &["format"])?;
            let format = given.string(0, "format")?.ok_or("a format is needed")?;
            ops.text(ops.now.formatted(&ops.budget, format)?)
        }
        // What the template says to people: why it refuses.
        _ => {
            given.at_most(1, &["message"])?;
            Err(given
                .get(0, "message")
                .map_or_else(|| Ok(String::new()), |message| ops.written(message))?)
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
        Some(pairs @ (Value::List(_) | Value::Generator(_))) => {
            let pair = |item: &Value| match ops.items(item)?.as_slice() {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err("a list that is not of pairs".into()),
            };
            ops.items(pairs)?.iter().map(pair).collect::<Result<_>>()?
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
        Value::Str(text) => strings::method(ops, text, name, given),
        Value::Bytes(bytes) => strings::bytes_method(ops, bytes, name, given),
        Value::List(items) => list_method(ops, of, items, name, given),
        Value::Float(value) if name == "is_integer" => {
            given.at_most(0, &[])?;
            Ok(Value::Bool(value.fract() == 0.0))
        }
        Value::Map(entries) => {
            ops.budget.step(entries.len())?;
            given.at_most(if name == "get" { 2 } else { 0 }, &[])?;
            match name {
                "items" => {
                    let pair = |(key, value): &(Value, Value)| {
                        Value::tuple(&ops.budget, vec![key.clone(), value.clone()])
                    };
                    let pairs = entries.iter().map(pair).collect::<Result<_>>()?;
                    Value::sequence(&ops.budget, pairs, Shape::View("dict_items"))
                }
                "keys" => {
                    let keys = entries.iter().map(|(key, _)| key.clone()).collect();
                    Value::sequence(&ops.budget, keys, Shape::View("dict_keys"))
                }
                "values" => {
                    let values = entries.iter().map(|(_, value)| value.clone()).collect();
                    Value::sequence(&ops.budget, values, Shape::View("dict_values"))
                }
                "copy" => Ok(of.clone()),
                _ => {
                    let found =
                        find(entries, given.get(0, "").ok_or("a key is needed")?, &ops.budget)?;
                    Ok(found.or(given.get(1, "")).cloned().unwrap_or(Value::None))
                }
            }
        }
        Value::Loop(_) if !given.named.is_empty() => Err("no argument of it has a name".into()),
        Value::Loop(state) if name == "cycle" => {
            let length = given.positional.len();
            if length == 0 {
                Err("nothing to cycle through".into())
            } else {
                Ok(given.positional[state.index.get() % length].clone())
            }
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

/// Methods of lists and tuples that change nothing.
fn list_method(ops: &Ops, of: &Value, items: &Items, name: &str, given: &Given) -> Result<Value> {
    given.at_most(if name == "copy" { 0 } else { 1 }, &[])?;
    if name == "copy" {
        return Ok(of.clone());
    }
    let one = given.get(0, "").ok_or("a value is needed")?;
    let mut count = 0;
    for (at, item) in items.iter().enumerate() {
        let equal = item.equals(one, &ops.budget)?;
        if equal && name == "index" {
            return Ok(Value::Int(at as i64));
        }
        count += i64::from(equal);
    }
    if name == "index" { Err("the value is not in the list".into()) } else { Ok(Value::Int(count)) }
}

pub fn test(ops: &Ops, name: &str, value: &Value, given: &Given) -> Result<bool> {
    ops.visit(value, given)?;
    let compares = [
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "divisibleby",
        "eq",
        "equalto",
        "sameas",
        "ne",
        "lt",
        "lessthan",
        "le",
        "gt",
        "greaterthan",
        "ge",
        "in",
    ];
    given.at_most(usize::from(compares.contains(&name)), &[])?;
    let argument =
        || given.get(0, "").ok_or_else(|| "a value to compare with is needed".to_owned());
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
        "sequence" => match value {
            Value::List(items) => !matches!(items.shape(), Shape::View(_)),
            other => {
                matches!(other, Value::Str(_) | Value::Bytes(_) | Value::Map(_) | Value::Undefined)
            }
        },
        "iterable" => matches!(
            value,
            Value::List(_)
                | Value::Generator(_)
                | Value::Str(_)
                | Value::Bytes(_)
                | Value::Map(_)
                | Value::Undefined
        ),
        "callable" => matches!(
            value,
            Value::Function(_) | Value::Macro(_) | Value::Method(..) | Value::Undefined
        ),
        "odd" | "even" => {
            let two = operators::binary(ops, "%", value, &Value::Int(2))?;
            two.equals(&Value::Int(i64::from(name == "odd")), &ops.budget)?
        }
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
        "==" | "eq" | "equalto" => ops.compares("==", value, argument()?)?,
        "!=" | "ne" => ops.compares("!=", value, argument()?)?,
        "<" | "lt" | "lessthan" => ops.compares("<", value, argument()?)?,
        "<=" | "le" => ops.compares("<=", value, argument()?)?,
        ">" | "gt" | "greaterthan" => ops.compares(">", value, argument()?)?,
        ">=" | "ge" => ops.compares(">=", value, argument()?)?,
        "sameas" => value.is_same(argument()?),
        "in" => ops.compares("in", value, argument()?)?,
        _ => return Err("is no test of chat templates".into()),
    })
}
