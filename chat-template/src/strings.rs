//! Methods of strings, and what filters share with them.

use crate::{
    ops::{Given, Ops},
    value::{Output, Value},
};

type Result<T> = std::result::Result<T, String>;

pub fn method(ops: &Ops, text: &str, name: &str, given: &Given) -> Result<Value> {
    match name {
        "split" | "rsplit" => given.at_most(2, &["sep", "maxsplit"])?,
        "replace" => given.at_most(3, &["count"])?,
        "strip" | "lstrip" | "rstrip" | "startswith" | "endswith" | "find" | "count" | "join" => {
            given.at_most(1, &[])?
        }
        _ => given.at_most(0, &[])?,
    }
    // Letters of another case take three times the bytes at most; parts are held as slices before
    // they are values.
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
        "strip" | "lstrip" | "rstrip" => strip(ops, text, name, given.string(0, "")?),
        "startswith" | "endswith" => {
            let one = |part: &Value| {
                let part = part
                    .as_str()
                    .ok_or_else(|| format!("{} where a string is needed", part.kind()))?;
                ops.budget.step(1 + part.len() / 16)?;
                Ok(if name == "startswith" { text.starts_with(part) } else { text.ends_with(part) })
            };
            match given.get(0, "").ok_or("a string is needed")? {
                Value::List(parts) => parts
                    .iter()
                    .map(one)
                    .collect::<Result<Vec<_>>>()
                    .map(|found| Value::Bool(found.contains(&true))),
                part => one(part).map(Value::Bool),
            }
        }
        "find" => {
            let part = given.string(0, "")?.ok_or("a string is needed")?;
            Ok(Value::Int(text.find(part).map_or(-1, |at| text[..at].chars().count() as i64)))
        }
        "count" => {
            let part = given.string(0, "")?.ok_or("a string is needed")?;
            Ok(Value::Int(if part.is_empty() {
                text.chars().count() + 1
            } else {
                text.matches(part).count()
            } as i64))
        }
        "splitlines" => strings(ops, lines(text)),
        "split" | "rsplit" => {
            let most = match given.get(1, "maxsplit") {
                Some(value) => value.as_int().ok_or("maxsplit is no number")?,
                None => -1,
            };
            let most = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
            let parts: Vec<&str> = match (given.string(0, "sep")?, name) {
                (Some(""), _) => return Err("an empty separator".into()),
                (Some(separator), "split") => text.splitn(most, separator).collect(),
                (Some(separator), _) => {
                    let mut parts: Vec<_> = text.rsplitn(most, separator).collect();
                    parts.reverse();
                    parts
                }
                (None, "split") => words(text, most),
                (None, _) if most == usize::MAX => words(text, most),
                (None, _) => {
                    return Err("rsplit by white space with a limit is not supported".into());
                }
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
        let end = rest.find(
            |c| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'),
        );
        let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
        lines.push(line);
        rest = after.strip_prefix("\r\n").unwrap_or_else(|| {
            after.get(after.chars().next().map_or(0, char::len_utf8)..).unwrap_or("")
        });
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

pub fn strip(ops: &Ops, text: &str, name: &str, of: Option<&str>) -> Result<Value> {
    ops.budget.step(of.map_or(1, str::len).saturating_mul(text.len()) / 16)?;
    let stripped = |c: char| of.map_or(c.is_whitespace(), |of| of.contains(c));
    let text = if name == "rstrip" { text } else { text.trim_start_matches(stripped) };
    ops.text(if name == "lstrip" { text } else { text.trim_end_matches(stripped) })
}

pub fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars.flat_map(char::to_lowercase)).collect()
    })
}

fn title(text: &str) -> String {
    let mut begins = true;
    let letter = |c: char| {
        let letters: String =
            if begins { c.to_uppercase().collect() } else { c.to_lowercase().collect() };
        begins = !c.is_alphabetic();
        letters
    };
    text.chars().map(letter).collect()
}

pub fn replace(ops: &Ops, text: &str, given: &Given) -> Result<Value> {
    let (from, to) = (
        given.string(0, "old")?.ok_or("what to replace is missing")?,
        given.string(1, "new")?.ok_or("what to put there is missing")?,
    );
    let most = given.count(2, "count")?.unwrap_or(usize::MAX);
    ops.budget.step(text.len() / 4)?;
    let times = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() }
        .min(most);
    ops.budget.check(text.len().saturating_add(times.saturating_mul(to.len())))?;
    ops.text(text.replacen(from, to, most))
}

pub fn join(ops: &Ops, items: &Value, separator: &str, attribute: Option<&Value>) -> Result<Value> {
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
