//! Reads the syntax of GBNF.

use super::expression::{Class, Expression, Rules};
use crate::{
    error::{Error, Result},
    limits::grammar::{MOST_DEPTH, MOST_PARTS, MOST_REPEATED, MOST_RULES},
    model::tokenizer::vocabulary::failed,
};
use std::collections::HashMap;

/// Reads all rules.
///
/// # Errors
/// For what is wrong, with its line and column.
pub fn parse(source: &str) -> Result<Rules> {
    let mut parser = Parser { source, at: 0, depth: 0, parts: 0, rules: HashMap::new() };
    let mut bodies = HashMap::new();
    parser.skip(true);
    while parser.at < source.len() {
        let at = parser.at;
        let name = parser.name().ok_or_else(|| parser.expected("a rule, as in `name ::= ..`"))?;
        let rule = parser.rule(name, at)?;
        parser.skip(false);
        if !parser.take("::=") {
            return Err(parser.expected("`::=`"));
        }
        if bodies.insert(rule, parser.choice()?).is_some() {
            return Err(parser.error(at, format!("the rule `{name}` is defined twice")));
        }
    }
    let missing = parser.rules.iter().filter(|(_, (rule, _))| !bodies.contains_key(rule));
    if let Some((name, &(_, at))) = missing.min_by_key(|(_, (_, at))| *at) {
        return Err(parser.error(at, format!("there is no rule `{name}`")));
    }
    let Some(&(root, _)) = parser.rules.get("root") else {
        return Err(failed("there is no rule `root`, with which a text begins"));
    };
    let bodies = (0..parser.rules.len()).filter_map(|rule| bodies.remove(&rule)).collect();
    Ok(Rules { root, bodies })
}

/// Returns whether names of rules have a character.
pub fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

struct Parser<'a> {
    source: &'a str,
    /// The byte that is read next.
    at: usize,
    /// Groups that are open.
    depth: usize,
    /// Characters, classes and names so far.
    parts: usize,
    /// The index of each name, and the byte where it is first.
    rules: HashMap<&'a str, (usize, usize)>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += character.len_utf8();
        Some(character)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    /// Skips spaces and comments, and line breaks too if `lines` says so.
    fn skip(&mut self, lines: bool) {
        while let Some(character) = self.peek() {
            match character {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        self.at += length;
        (length > 0).then(|| &rest[..length])
    }

    /// The index of a rule whose name is at a byte.
    fn rule(&mut self, name: &'a str, at: usize) -> Result<usize> {
        let count = self.rules.len();
        let rule = self.rules.entry(name).or_insert((count, at)).0;
        if rule >= MOST_RULES {
            return Err(self.error(at, format!("at most {MOST_RULES} rules are accepted")));
        }
        Ok(rule)
    }

    /// Sequences with `|` between them. They end with the group, or the rule.
    fn choice(&mut self) -> Result<Expression> {
        let mut choices = Vec::new();
        loop {
            // A rule goes on in the next line after `::=` and `|`.
            self.skip(true);
            choices.push(self.sequence()?);
            let at = self.at;
            self.skip(true);
            if self.take("|") {
                continue;
            }
            let is_line = self.at >= self.source.len() || self.source[at..self.at].contains('\n');
            if self.depth == 0 && !is_line {
                return Err(self.expected("a literal, a class, a group, a name or `|`"));
            }
            return Ok(one_of(choices, Expression::Choice));
        }
    }

    /// Returns whether a name and `::=` follow.
    fn begins_rule(&self) -> bool {
        let rest = self.rest().trim_start_matches(is_name);
        rest.len() < self.rest().len() && rest.trim_start_matches([' ', '\t']).starts_with("::=")
    }

    fn sequence(&mut self) -> Result<Expression> {
        let mut parts = Vec::new();
        while !self.begins_rule()
            && let Some(part) = self.part()?
        {
            parts.push(self.repeated(part)?);
            self.skip(self.depth > 0);
        }
        Ok(one_of(parts, Expression::Sequence))
    }

    /// A literal, a class, a group or a name, if there is one.
    fn part(&mut self) -> Result<Option<Expression>> {
        let at = self.at;
        let part = match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.at += 1;
                Expression::Class(Class::any())
            }
            Some('(') => self.group()?,
            Some('<' | '!') => {
                let token = self.rest().split_inclusive(['>', '\n']).next().unwrap_or_default();
                let what = format!("tokens such as `{}` are not supported", token.trim_end());
                return Err(self.error(at, format!("{what}; write their text as a literal")));
            }
            Some(character) if is_name(character) => {
                let name = self.name().unwrap_or_default();
                Expression::Rule(self.rule(name, at)?)
            }
            _ => return Ok(None),
        };
        self.count(1)?;
        Ok(Some(part))
    }

    fn count(&mut self, parts: usize) -> Result<()> {
        self.parts += parts;
        if self.parts > MOST_PARTS {
            let what = format!("at most {MOST_PARTS} characters, classes and names are accepted");
            return Err(self.error(self.at, what));
        }
        Ok(())
    }

    fn group(&mut self) -> Result<Expression> {
        let at = self.at;
        self.at += 1;
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(self.error(at, format!("groups are nested more than {MOST_DEPTH} deep")));
        }
        let group = self.choice()?;
        if self.at >= self.source.len() {
            return Err(self.open(at, ")"));
        }
        if !self.take(")") {
            return Err(self.expected("`)`"));
        }
        self.depth -= 1;
        Ok(group)
    }

    fn literal(&mut self) -> Result<Expression> {
        let (at, mut text) = (self.at, String::new());
        self.at += 1;
        while !self.take("\"") {
            text.push(self.character(at, "\"")?);
            self.count(1)?;
        }
        Ok(Expression::Literal(text))
    }

    fn class(&mut self) -> Result<Expression> {
        let (at, mut ranges) = (self.at, Vec::new());
        self.at += 1;
        let negated = self.take("^");
        while !self.take("]") {
            let first_at = self.at;
            let first = self.character(at, "]")?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = if is_range {
                self.at += 1;
                self.character(at, "]")?
            } else {
                first
            };
            if last < first {
                let what = "the first character of a range comes after its last";
                return Err(self.error(first_at, what));
            }
            ranges.push((first.into(), last.into()));
            self.count(1)?;
        }
        let class = Class::new(ranges, negated);
        if class.is_empty() {
            return Err(self.error(at, "a class needs a character"));
        }
        Ok(Expression::Class(class))
    }

    /// A character of a literal or class that began at a byte and ends with `close`.
    fn character(&mut self, began: usize, close: &str) -> Result<char> {
        let at = self.at;
        match self.next() {
            None | Some('\n' | '\r') => Err(self.open(began, close)),
            Some('\\') => self.escaped(at),
            Some(character) => Ok(character),
        }
    }

    fn escaped(&mut self, at: usize) -> Result<char> {
        let digits = match self.next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('t') => return Ok('\t'),
            Some('r') => return Ok('\r'),
            Some('n') => return Ok('\n'),
            Some(character @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(character),
            _ => {
                let known = r#"`\n`, `\r`, `\t`, `\\`, `\"`, `\[`, `\]`, `\xHH`, `\uHHHH` and `\UHHHHHHHH`"#;
                return Err(self.error(at, format!("unknown escape; accepted are {known}")));
            }
        };
        let code =
            self.rest().get(..digits).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = code.ok_or_else(|| {
            self.error(at, format!("this escape has {digits} hexadecimal digits"))
        })?;
        self.at += digits;
        let code = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
        code.ok_or_else(|| self.error(at, "this is no character of Unicode"))
    }

    /// A part with the operator behind it, if there is one.
    fn repeated(&mut self, part: Expression) -> Result<Expression> {
        self.skip(self.depth > 0);
        let (least, most) = match self.peek() {
            Some('?') => (0, Some(1)),
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('{') => self.bounds()?,
            _ => return Ok(part),
        };
        // The operator, or the end of the bounds.
        self.at += 1;
        self.skip(self.depth > 0);
        if self.peek().is_some_and(|next| "?*+{".contains(next)) {
            let what = "an operator cannot follow another; put parentheses around the first";
            return Err(self.error(self.at, what));
        }
        Ok(Expression::Repeat { part: Box::new(part), least, most })
    }

    /// Reads `{m}`, `{m,}`, `{m,n}` or `{,n}`, but for the end.
    fn bounds(&mut self) -> Result<(u32, Option<u32>)> {
        let (at, rest) = (self.at, &self.rest()[1..]);
        let length = rest.find(['}', '\n']).unwrap_or(rest.len());
        if !rest[length..].starts_with('}') {
            return Err(self.open(at, "}"));
        }
        let inner = &rest[..length];
        self.at += 1 + length;
        let number = |text: &str| text.parse().ok().filter(|&number| number <= MOST_REPEATED);
        let (least, most) = inner.split_once(',').unwrap_or((inner, inner));
        let bounds = match (least.trim(), most.trim()) {
            ("", "") => None,
            ("", most) => number(most).map(|most| (0, Some(most))),
            (least, "") => number(least).map(|least| (least, None)),
            (least, most) => number(least).zip(number(most).map(Some)),
        };
        bounds.filter(|&(least, most)| most.is_none_or(|most| least <= most)).ok_or_else(|| {
            let what = "expected `{m}`, `{m,}` or `{m,n}`, the smaller number first";
            self.error(at, format!("{what}; at most {MOST_REPEATED} is accepted"))
        })
    }

    fn open(&self, at: usize, close: &str) -> Error {
        let begin = self.source[at..].chars().next().unwrap_or_default();
        self.error(at, format!("`{begin}` without `{close}`"))
    }

    fn expected(&self, what: &str) -> Error {
        let found = self.peek().map_or("the end of the grammar".to_owned(), |c| format!("`{c}`"));
        self.error(self.at, format!("expected {what}, found {found}"))
    }

    /// An error at a byte.
    fn error(&self, at: usize, what: impl std::fmt::Display) -> Error {
        let before = &self.source[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        failed(format!("line {line}, column {column}: {what}"))
    }
}

/// The only part, or all of them together.
fn one_of(mut parts: Vec<Expression>, all: fn(Vec<Expression>) -> Expression) -> Expression {
    if parts.len() == 1 { parts.remove(0) } else { all(parts) }
}
