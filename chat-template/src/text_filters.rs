//! Filters of texts: `truncate`, `wordcount`, `wordwrap`, `center`, `urlencode`, `indent`.

use crate::{
    budget::Output,
    format,
    limits::MAX_INDENT,
    ops::{Given, Ops},
    strings::{capitalized, lines},
    value::Value,
};
use std::fmt::Write as _;

type Result<T> = std::result::Result<T, String>;

/// Words, unlike those of the method `title`, begin after white space, brackets and hyphens only.
pub fn title(ops: &Ops, text: &str) -> Result<Value> {
    ops.budget.check(3 * text.len())?;
    let words = text.split_inclusive(|c: char| c.is_whitespace() || "-({[<".contains(c));
    ops.text(words.map(capitalized).collect::<String>())
}

pub fn escape(ops: &Ops, text: &str) -> Result<Value> {
    ops.budget.check(6 * text.len())?;
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    ops.text(escaped)
}

pub fn indent(ops: &Ops, text: &str, given: &Given) -> Result<Value> {
    let prefix = match given.get(0, "width") {
        Some(Value::Str(prefix)) => prefix.to_string(),
        _ => {
            let width = given.get(0, "width").map_or(Some(4), Value::as_int);
            let width = usize::try_from(width.ok_or("a width is an integer")?).unwrap_or(0);
            if width > MAX_INDENT {
                return Err(format!("by {width} blanks; {MAX_INDENT} are supported"));
            }
            " ".repeat(width)
        }
    };
    let (first, blank) = (given.is(1, "first"), given.is(2, "blank"));
    let text = [text, "\n"].concat();
    let mut indented = Output::new(&ops.budget);
    for (i, line) in lines(&text, false).into_iter().enumerate() {
        indented.push(if i > 0 { "\n" } else { "" })?;
        if if i == 0 { first } else { blank || !line.is_empty() } {
            indented.push(&prefix)?;
        }
        indented.push(line)?;
    }
    ops.text(indented.into_text())
}

/// A text's beginning and an ellipsis, if the text is longer than a length and a leeway. A list or a
/// dictionary that is not longer is returned as it is.
pub fn truncate(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let length = given.count(0, "length")?.unwrap_or(255);
    let end = given.string(2, "end")?.unwrap_or("...");
    let leeway = given.count(3, "leeway")?.unwrap_or(5);
    let kept = length.checked_sub(end.chars().count()).ok_or("the length is less than the end")?;
    let count = match value {
        Value::Str(text) => text.chars().count(),
        Value::List(items) => items.len(),
        Value::Map(entries) => entries.len(),
        Value::Undefined => 0,
        other => return Err(format!("of {}", other.kind())),
    };
    if count <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let text = value.as_str().ok_or_else(|| format!("of {}", value.kind()))?;
    let at = text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
    let mut begin = &text[..at];
    if !given.is(1, "killwords") {
        begin = begin.rsplit_once(' ').map_or(begin, |(begin, _)| begin);
    }
    ops.budget.check(begin.len() + end.len())?;
    ops.text([begin, end].concat())
}

pub fn word_count(text: &str) -> Value {
    let words = text.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    Value::Int(words.count() as i64)
}

pub fn center(ops: &Ops, text: &str, given: &Given) -> Result<Value> {
    let width = given.get(0, "width").map_or(Some(80), Value::as_int).ok_or("a width is needed")?;
    ops.text(format::justified(ops, text, width, ' ', '^')?)
}

/// A text for a URL; with `=` and `&` between keys and values, a dictionary or a list of pairs.
pub fn url_encode(ops: &Ops, value: &Value) -> Result<Value> {
    let quoted = |value: &Value, slash: &str| -> Result<String> {
        let text = ops.written(value)?;
        ops.budget.check(3 * text.len())?;
        let mut quoted = String::new();
        for byte in text.bytes() {
            match char::from(byte) {
                c if c.is_ascii_alphanumeric() || "_.-~".contains(c) || slash.contains(c) => {
                    quoted.push(c);
                }
                ' ' if slash.is_empty() => quoted.push('+'),
                _ => drop(write!(quoted, "%{byte:02X}")),
            }
        }
        Ok(quoted)
    };
    let pairs: Vec<(Value, Value)> = match value {
        Value::Map(entries) => entries.to_vec(),
        Value::List(_) | Value::Generator(_) => {
            let pair = |item: &Value| match ops.items(item)?.as_slice() {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err("a list that is not of pairs".into()),
            };
            ops.items(value)?.iter().map(pair).collect::<Result<_>>()?
        }
        other => return ops.text(quoted(other, "/")?),
    };
    let mut out = Output::new(&ops.budget);
    for (i, (key, value)) in pairs.iter().enumerate() {
        out.push(if i > 0 { "&" } else { "" })?;
        out.push(&quoted(key, "")?)?;
        out.push("=")?;
        out.push(&quoted(value, "")?)?;
    }
    ops.text(out.into_text())
}

/// Lines that are broken between words, as `textwrap.wrap` of Python does.
pub fn word_wrap(ops: &Ops, text: &str, given: &Given) -> Result<Value> {
    let width = given.count(0, "width")?.unwrap_or(79);
    if width == 0 {
        return Err("a width of 0".into());
    }
    let is = |at, name| given.get(at, name).is_none_or(Value::is_true);
    let wrap = Wrap {
        width,
        break_words: is(1, "break_long_words"),
        break_hyphens: is(3, "break_on_hyphens"),
    };
    let between = given.string(2, "wrapstring")?.unwrap_or("\n");
    // Characters, and for each word where it begins and ends.
    ops.budget.check(text.len().saturating_mul(4 + 2 * size_of::<&[char]>()))?;
    let mut out = Output::new(&ops.budget);
    for (i, line) in lines(text, false).into_iter().enumerate() {
        out.push(if i > 0 { between } else { "" })?;
        let characters: Vec<char> = line.chars().collect();
        for (i, wrapped) in wrap.lines(ops, &characters)?.into_iter().enumerate() {
            out.push(if i > 0 { between } else { "" })?;
            out.push(&wrapped)?;
        }
    }
    ops.text(out.into_text())
}

struct Wrap {
    width: usize,
    break_words: bool,
    break_hyphens: bool,
}

impl Wrap {
    /// Lines of a text that has none, without the white space at which it was broken.
    fn lines(&self, ops: &Ops, text: &[char]) -> Result<Vec<String>> {
        let mut chunks = self.chunks(text).into_iter();
        let mut next = chunks.next();
        let mut lines: Vec<String> = Vec::new();
        while let Some(first) = next {
            ops.budget.step(4)?;
            if is_blank(first) && !lines.is_empty() {
                next = chunks.next();
            }
            let (mut line, mut length) = (Vec::new(), 0);
            while let Some(chunk) = next.filter(|chunk| length + chunk.len() <= self.width) {
                line.push(chunk);
                length += chunk.len();
                next = chunks.next();
            }
            if let Some(chunk) = next.filter(|chunk| chunk.len() > self.width) {
                next = self.broken(chunk, &mut line, self.width - length, || chunks.next());
            }
            if line.last().is_some_and(|last| is_blank(last)) {
                line.pop();
            }
            if !line.is_empty() {
                lines.push(line.concat().into_iter().collect());
            }
        }
        Ok(lines)
    }

    /// Puts the beginning of a chunk that is longer than a line where there is room, and returns
    /// what comes next.
    fn broken<'a>(
        &self,
        chunk: &'a [char],
        line: &mut Vec<&'a [char]>,
        room: usize,
        after: impl FnOnce() -> Option<&'a [char]>,
    ) -> Option<&'a [char]> {
        if self.break_words {
            let hyphen = chunk[..room].iter().rposition(|&c| c == '-');
            let hyphen = hyphen.filter(|&at| chunk[..at].iter().any(|&c| c != '-'));
            let end = hyphen.filter(|_| self.break_hyphens).map_or(room, |at| at + 1);
            line.push(&chunk[..end]);
            return Some(&chunk[end..]);
        }
        if line.is_empty() {
            line.push(chunk);
            return after();
        }
        Some(chunk)
    }

    /// White space and words, which end at hyphens and dashes too.
    fn chunks<'a>(&self, text: &'a [char]) -> Vec<&'a [char]> {
        let (mut chunks, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let blanks = text[at..].iter().take_while(|&&c| is_space(c)).count();
            let length = match blanks {
                0 if self.break_hyphens => word(text, at),
                0 => text[at..].iter().take_while(|&&c| !is_space(c)).count(),
                blanks => blanks,
            };
            chunks.push(&text[at..at + length]);
            at += length;
        }
        chunks
    }
}

/// Length of the word or dash at a place that is not white space.
fn word(text: &[char], at: usize) -> usize {
    let punctuation = |c: char| is_word(c) || "!\"'&.,?".contains(c);
    let before_dash = |end: usize| end > 0 && punctuation(text[end - 1]);
    let dash = |at: usize| {
        let length = text[at..].iter().take_while(|&&c| c == '-').count();
        (length > 1 && text.get(at + length).is_some_and(|&c| is_word(c))).then_some(length)
    };
    if before_dash(at)
        && let Some(length) = dash(at)
    {
        return length;
    }
    let letter = |at: Option<usize>| {
        let c = at.and_then(|at| text.get(at));
        c.is_some_and(|&c| is_word(c) && c != '_' && !c.is_numeric())
    };
    let mut end = at + 1;
    while end < text.len() && !is_space(text[end]) {
        if text[end] == '-' {
            let two = letter(end.checked_sub(1)) && letter(end.checked_sub(2));
            let one = end >= 3 && letter(Some(end - 3)) && text[end - 2] == '-' && before_dash(end);
            let next = if text.get(end + 1 + 1) == Some(&'-') { 3 } else { 2 };
            if (two || one) && letter(Some(end + 1)) && letter(Some(end + next)) {
                return end + 1 - at;
            }
        }
        if before_dash(end) && dash(end).is_some() {
            return end - at;
        }
        end += 1;
    }
    end - at
}

/// Returns whether a character is part of a word, as `\w` of Python's patterns.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_space(c: char) -> bool {
    matches!(c, '\t'..='\r' | ' ')
}

fn is_blank(chunk: &[char]) -> bool {
    chunk.iter().all(|&c| crate::strings::is_space(c))
}
