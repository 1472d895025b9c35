//! Operators of two values.

use crate::{
    format,
    ops::Ops,
    value::{Shape, Value},
};

type Result<T> = std::result::Result<T, String>;

pub fn binary(ops: &Ops, operator: &str, a: &Value, b: &Value) -> Result<Value> {
    match (operator, a, b) {
        ("~", ..) => {
            let (mut text, other) = (ops.written(a)?, ops.written(b)?);
            ops.budget.check(text.len() + other.len())?;
            text += &other;
            ops.text(text)
        }
        ("+", Value::Str(a), Value::Str(b)) => {
            ops.budget.check(a.len() + b.len())?;
            ops.text([a.as_str(), b.as_str()].concat())
        }
        ("+", Value::List(one), Value::List(two)) if one.shape().class() == two.shape().class() => {
            ops.budget.check((one.len() + two.len()) * size_of::<Value>())?;
            let all = one.iter().chain(two.iter()).cloned().collect();
            sequence(ops, operator, a, b, all)
        }
        ("*", value @ (Value::Str(_) | Value::List(_)), count)
        | ("*", count, value @ (Value::Str(_) | Value::List(_)))
            if count.as_int().is_some() =>
        {
            let count = usize::try_from(count.as_int().unwrap_or(0)).unwrap_or(0);
            repeated(ops, value, count)
        }
        ("%", Value::Str(text), values) => {
            let (values, entries) = (format::operands(values), format::entries(values));
            ops.text(format::percent(ops, text, &values, entries)?)
        }
        _ => numbers(operator, a, b),
    }
}

/// The concatenation of two sequences, of the type of the first.
fn sequence(ops: &Ops, operator: &str, a: &Value, b: &Value, all: Vec<Value>) -> Result<Value> {
    match a {
        Value::List(items) if !matches!(items.shape(), Shape::View(_)) => {
            Value::sequence(&ops.budget, all, items.shape().class())
        }
        _ => Err(unsupported(operator, a, b)),
    }
}

/// A string or a list, repeated.
fn repeated(ops: &Ops, value: &Value, count: usize) -> Result<Value> {
    match value {
        Value::Str(text) => {
            ops.budget.check(text.len().saturating_mul(count))?;
            ops.text(text.repeat(count))
        }
        Value::List(items) => {
            let length = items.len().saturating_mul(count);
            ops.budget.check(length.saturating_mul(size_of::<Value>()))?;
            ops.budget.step(length)?;
            let all = items.iter().cycle().take(length).cloned().collect();
            sequence(ops, "*", value, &Value::Int(0), all)
        }
        other => Err(format!("`*` of {}", other.kind())),
    }
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> String {
    format!("`{operator}` of {} and {}", a.kind(), b.kind())
}

/// Arithmetic of numbers.
fn numbers(operator: &str, a: &Value, b: &Value) -> Result<Value> {
    let wrong = || unsupported(operator, a, b);
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        let result = match operator {
            "+" => a.checked_add(b),
            "-" => a.checked_sub(b),
            "*" => a.checked_mul(b),
            "//" | "%" | "/" if b == 0 => return Err("a division by zero".into()),
            "//" => a
                .checked_div_euclid(b)
                .map(|q| if b < 0 && a.rem_euclid(b) != 0 { q - 1 } else { q }),
            "%" => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
            "**" if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            _ => return float(operator, a as f64, b as f64).map(Value::Float).ok_or_else(wrong),
        };
        return result.map(Value::Int).ok_or_else(|| "a number is too large".into());
    }
    match (a.as_float(), b.as_float()) {
        (Some(_), Some(0.0)) if ["/", "//", "%"].contains(&operator) => {
            Err("a division by zero".into())
        }
        (Some(a), Some(b)) => float(operator, a, b).map(Value::Float).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

fn float(operator: &str, a: f64, b: f64) -> Option<f64> {
    Some(match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        "//" => (a / b).floor(),
        "%" => a - b * (a / b).floor(),
        "**" => a.powf(b),
        _ => return None,
    })
}
