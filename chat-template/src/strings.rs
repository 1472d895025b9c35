//! Methods of strings and bytes, and what filters share with them.

use crate::{
    budget::Output,
    format,
    methods::parameters,
    ops::{Given, Ops},
    printing,
    value::{Bytes, Value},
};
use std::fmt::Write as _;

type Result<T> = std::result::Result<T, String>;

pub fn method(ops: &Ops, text: &str, name: &str, given: &Given) -> Result<Value> {
    let (positional, named) = parameters(name).ok_or("is no method of a string")?;
    if name == "format" {
        return ops.text(format::braces(ops, text, given)?);
    }
    given.at_most(positional, named)?;
    // Letters of another case take three times the bytes at most; parts are held as slices before
    // they are values.
    ops.budget.check(size_of::<&str>() * text.len())?;
    let string = || given.string(0, "")?.ok_or("a string is needed".to_owned());
    match name {
        "upper" => ops.text(text.to_uppercase()),
        "lower" | "casefold" => ops.text(text.to_lowercase()),
        "title" => ops.text(title(text)),
        "capitalize" => ops.text(capitalized(text)),
        "swapcase" => ops.text(swapped(text)),
        "strip" | "lstrip" | "rstrip" => strip(ops, text, name, given.string(0, "")?),
        "startswith" | "endswith" => begins_or_ends(ops, text, name, given),
        "find" | "rfind" | "index" | "rindex" | "count" => found(ops, text, name, given),
        "splitlines" => parts(ops, &lines(text, given.is(0, "keepends"))),
        "split" | "rsplit" => split(ops, text, name, given),
        "partition" | "rpartition" => {
            let separator = string()?;
            if separator.is_empty() {
                return Err("an empty separator".into());
            }
            let [a, b, c] = match name {
                "partition" => text.split_once(separator).map(|(a, c)| [a, separator, c]),
                _ => text.rsplit_once(separator).map(|(a, c)| [a, separator, c]),
            }
            .unwrap_or(if name == "partition" {
                [text, "", ""]
            } else {
                ["", "", text]
            });
            ops.budget.check(text.len())?;
            Value::tuple(&ops.budget, vec![ops.text(a)?, ops.text(b)?, ops.text(c)?])
        }
        "removeprefix" => ops.text(text.strip_prefix(string()?).unwrap_or(text)),
        "removesuffix" => ops.text(text.strip_suffix(string()?).unwrap_or(text)),
        "ljust" | "rjust" | "center" => {
            let width = given.get(0, "").and_then(Value::as_int).ok_or("a width is needed")?;
            let fill = one_character(given.string(1, "")?.unwrap_or(" "))?;
            let align = ["ljust", "rjust"].iter().position(|known| *known == name);
            let align = align.map_or('^', |at| ['<', '>'][at]);
            ops.text(format::justified(ops, text, width, fill, align)?)
        }
        "zfill" => {
            let width = given.get(0, "").and_then(Value::as_int).ok_or("a width is needed")?;
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            let sign = &text[..text.len() - digits.len()];
            let width = width.saturating_sub(sign.len() as i64);
            ops.text([sign, &format::justified(ops, digits, width, '0', '>')?].concat())
        }
        "expandtabs" => expand_tabs(ops, text, given),
        "encode" => encode(ops, text, given),
        "replace" => replace(ops, text, given),
        "join" => join(ops, given.get(0, "").ok_or("a list is needed")?, text, None),
        _ => Ok(Value::Bool(is_kind(text, name))),
    }
}

/// The answer of a method such as `isdigit`.
fn is_kind(text: &str, name: &str) -> bool {
    let cased = |c: char| c.is_uppercase() || c.is_lowercase();
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    match name {
        "isascii" => text.is_ascii(),
        "isdecimal" => all(is_decimal),
        "isdigit" => all(|c| is_decimal(c) || is_small_digit(c)),
        "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(is_space),
        "islower" => text.chars().any(cased) && !text.chars().any(char::is_uppercase),
        _ => text.chars().any(cased) && !text.chars().any(char::is_lowercase),
    }
}

/// Returns whether a character is white space to Python.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Digits of scripts that begin at a multiple of their block: those that are in common use.
fn is_decimal(c: char) -> bool {
    matches!(c, '0'..='9' | '\u{660}'..='\u{669}' | '\u{6f0}'..='\u{6f9}' | '\u{966}'..='\u{96f}'
        | '\u{9e6}'..='\u{9ef}' | '\u{e50}'..='\u{e59}' | '\u{ff10}'..='\u{ff19}')
}

/// Superscripts, subscripts and digits in circles.
fn is_small_digit(c: char) -> bool {
    matches!(c, '²' | '³' | '¹' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}'
        | '\u{2460}'..='\u{2468}' | '\u{2776}'..='\u{277e}')
}

/// A list of strings.
fn parts(ops: &Ops, parts: &[&str]) -> Result<Value> {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    ops.budget.check(parts.len() * (size_of::<Value>() + 64) + bytes)?;
    let parts = parts.iter().map(|part| ops.text(*part)).collect::<Result<_>>()?;
    Value::list(&ops.budget, parts)
}

/// The part of a text between two positions, which arguments may say, and where it begins.
fn window<'a>(text: &'a str, given: &Given) -> Result<Option<(usize, &'a str)>> {
    let number = |at: usize| match given.get(at, "") {
        None | Some(Value::None) => Ok(None),
        Some(value) => value.as_int().map(Some).ok_or("a position is an integer".to_owned()),
    };
    let (start, end) = (number(1)?, number(2)?);
    if start.is_none() && end.is_none() {
        return Ok(Some((0, text)));
    }
    let length = text.chars().count() as i64;
    let place = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(length)).min(length));
    if start > end {
        return Ok(None);
    }
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(at, _)| at);
    Ok(Some((start as usize, &text[byte(start)..byte(end)])))
}

fn begins_or_ends(ops: &Ops, text: &str, name: &str, given: &Given) -> Result<Value> {
    let window = window(text, given)?;
    let one = |part: &Value| {
        let text_of = part.as_str();
        let part = text_of.ok_or_else(|| format!("{} where a string is needed", part.kind()))?;
        ops.budget.step(1 + part.len() / 16)?;
        Ok(window.is_some_and(|(_, text)| match name {
            "startswith" => text.starts_with(part),
            _ => text.ends_with(part),
        }))
    };
    match given.get(0, "").ok_or("a string is needed")? {
        Value::List(parts) => {
            let all = parts.iter().map(one).collect::<Result<Vec<_>>>()?;
            Ok(Value::Bool(all.contains(&true)))
        }
        part => one(part).map(Value::Bool),
    }
}

/// Where a part is in a text, or how often.
fn found(ops: &Ops, text: &str, name: &str, given: &Given) -> Result<Value> {
    let part = given.string(0, "")?.ok_or("a string is needed")?;
    let window = window(text, given)?;
    ops.budget.step(text.len() / 4)?;
    if name == "count" {
        let count = match window {
            None => 0,
            Some((_, text)) if part.is_empty() => text.chars().count() + 1,
            Some((_, text)) => text.matches(part).count(),
        };
        return Ok(Value::Int(count as i64));
    }
    let at = window.and_then(|(begin, text)| {
        let at = if name.starts_with('r') { text.rfind(part) } else { text.find(part) };
        at.map(|at| begin + text[..at].chars().count())
    });
    match at {
        Some(at) => Ok(Value::Int(at as i64)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err("the part is not in the string".into()),
    }
}

fn split(ops: &Ops, text: &str, name: &str, given: &Given) -> Result<Value> {
    let most = match given.get(1, "maxsplit") {
        Some(value) => value.as_int().ok_or("maxsplit is no number")?,
        None => -1,
    };
    let most = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
    let found: Vec<&str> = match (given.string(0, "sep")?, name) {
        (Some(""), _) => return Err("an empty separator".into()),
        (Some(separator), "split") => text.splitn(most, separator).collect(),
        (Some(separator), _) => {
            let mut parts: Vec<_> = text.rsplitn(most, separator).collect();
            parts.reverse();
            parts
        }
        (None, "split") => words(text, most),
        (None, _) => last_words(text, most),
    };
    parts(ops, &found)
}

/// Lines, by everything that Python takes for the end of one.
pub fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = rest.find(
            |c| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'),
        );
        let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
        let after = after.strip_prefix("\r\n").unwrap_or_else(|| {
            after.get(after.chars().next().map_or(0, char::len_utf8)..).unwrap_or("")
        });
        lines.push(if keep_ends { &rest[..rest.len() - after.len()] } else { line });
        rest = after;
    }
    lines
}

/// Words between white space; the last of `most` has the rest.
fn words(text: &str, most: usize) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text.trim_start_matches(is_space));
    while !rest.is_empty() {
        if words.len() + 1 >= most {
            words.push(rest);
            break;
        }
        let (word, after) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
        words.push(word);
        rest = after.trim_start_matches(is_space);
    }
    words
}

/// Words between white space; the first of `most` has the rest.
fn last_words(text: &str, most: usize) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text.trim_end_matches(is_space));
    while !rest.is_empty() {
        if words.len() + 1 >= most {
            words.push(rest);
            break;
        }
        let word = rest.rsplit(is_space).next().unwrap_or(rest);
        words.push(word);
        rest = rest[..rest.len() - word.len()].trim_end_matches(is_space);
    }
    words.reverse();
    words
}

pub fn strip(ops: &Ops, text: &str, name: &str, of: Option<&str>) -> Result<Value> {
    ops.budget.step(of.map_or(1, str::len).saturating_mul(text.len()) / 16)?;
    let stripped = |c: char| of.map_or(is_space(c), |of| of.contains(c));
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

fn swapped(text: &str) -> String {
    let letter = |c: char| -> String {
        if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
    };
    text.chars().map(letter).collect()
}

fn one_character(text: &str) -> Result<char> {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err("what fills is one character".into()),
    }
}

fn expand_tabs(ops: &Ops, text: &str, given: &Given) -> Result<Value> {
    let size = given.count(0, "tabsize")?.unwrap_or(8);
    let (mut out, mut column) = (Output::new(&ops.budget), 0);
    for part in text.split_inclusive(['\t', '\n', '\r']) {
        let kept = part.strip_suffix('\t').unwrap_or(part);
        out.push(kept)?;
        column += kept.chars().count();
        if kept.len() < part.len() {
            let blanks = size - column.checked_rem(size).unwrap_or(0);
            ops.budget.check(blanks)?;
            out.blanks(blanks)?;
            column += blanks;
        } else if part.ends_with(['\n', '\r']) {
            column = 0;
        }
    }
    ops.text(out.into_text())
}

fn encode(ops: &Ops, text: &str, given: &Given) -> Result<Value> {
    let encoding = given.string(0, "encoding")?.unwrap_or("utf-8");
    let bytes = match encoding.to_ascii_lowercase().replace('_', "-").as_str() {
        "utf-8" | "utf8" => text.as_bytes().to_vec(),
        "ascii" if text.is_ascii() => text.as_bytes().to_vec(),
        "unicode-escape" => escaped(text).into_bytes(),
        "ascii" => return Err("the string is not ASCII".into()),
        other => return Err(format!("the encoding `{other}` is not supported")),
    };
    Value::bytes(&ops.budget, bytes)
}

/// A text whose characters beyond ASCII, and controls, are escapes.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            '\\' => escaped.push_str("\\\\"),
            ' '..='~' => escaped.push(c),
            c => printing::escape(c, &mut escaped),
        }
    }
    escaped
}

/// Methods of bytes.
pub fn bytes_method(ops: &Ops, bytes: &Bytes, name: &str, given: &Given) -> Result<Value> {
    ops.budget.check(2 * bytes.len())?;
    if name == "hex" {
        given.at_most(0, &[])?;
        let mut text = String::new();
        for byte in bytes.iter() {
            let _ = write!(text, "{byte:02x}");
        }
        return ops.text(text);
    }
    given.at_most(2, &["encoding", "errors"])?;
    let encoding = given.string(0, "encoding")?.unwrap_or("utf-8").to_ascii_lowercase();
    if !["utf-8", "utf8", "utf_8", "ascii"].contains(&encoding.as_str()) {
        return Err(format!("the encoding `{encoding}` is not supported"));
    }
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| "the bytes are not UTF-8")?;
    ops.text(text)
}

pub fn replace(ops: &Ops, text: &str, given: &Given) -> Result<Value> {
    let (from, to) = (
        given.string(0, "old")?.ok_or("what to replace is missing")?,
        given.string(1, "new")?.ok_or("what to put there is missing")?,
    );
    // As in Python, a negative number is no limit.
    let most = match given.get(2, "count").and_then(Value::as_int) {
        Some(most) => usize::try_from(most).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
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
