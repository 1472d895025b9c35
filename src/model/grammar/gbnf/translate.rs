//! Writes rules as llguidance reads them.
//!
//! llguidance reads a text in lexemes, and takes the longest; GBNF has no lexemes. So each character
//! is a lexeme of its own, but for parts that are found to be clear of others. Rules that do not
//! refer to themselves are one regular expression together, which is faster.

use super::{
    expression::{Class, Expression, Rules},
    lexemes::with_lexemes,
};
use crate::limits::grammar::{MOST_DEPTH, MOST_EXPANDED};
use llguidance::api::TopLevelGrammar;
use std::collections::HashMap;

/// Returns the grammar of rules.
pub fn translate(rules: Rules) -> TopLevelGrammar {
    let root = &rules.bodies[rules.root];
    match Regular::new(&rules).size(root, 0) {
        Some(size) if size <= MOST_EXPANDED => TopLevelGrammar::from_regex(&regex(&rules, root)),
        _ => TopLevelGrammar::from_lark(lark(&with_lexemes(rules))),
    }
}

/// Finds out which rules are regular.
pub struct Regular<'a> {
    rules: &'a Rules,
    /// The size of each rule that was begun; none while it is open, and for those that are not
    /// regular.
    sizes: HashMap<usize, Option<usize>>,
}

impl<'a> Regular<'a> {
    pub fn new(rules: &'a Rules) -> Self {
        Self { rules, sizes: HashMap::new() }
    }

    /// Returns the number of characters and operators of a regular expression for a part. There is
    /// none for a part that refers to itself, or is nested deeply.
    pub fn size(&mut self, part: &Expression, depth: usize) -> Option<usize> {
        // As deep as the parser of regular expressions goes.
        if depth > MOST_DEPTH / 2 {
            return None;
        }
        match part {
            Expression::Literal(text) => Some(text.chars().count()),
            Expression::Class(_) | Expression::Lexeme { .. } => Some(1),
            Expression::Rule(rule) => {
                if let Some(&size) = self.sizes.get(rule) {
                    return size;
                }
                self.sizes.insert(*rule, None);
                let size = self.size(&self.rules.bodies[*rule], depth + 1);
                self.sizes.insert(*rule, size);
                size
            }
            Expression::Sequence(parts) | Expression::Choice(parts) => {
                parts.iter().try_fold(1usize, |sum, part| {
                    Some(sum.saturating_add(self.size(part, depth + 1)?))
                })
            }
            Expression::Repeat { part, least, most } => {
                let times = most.unwrap_or(*least).max(1) as usize;
                Some(self.size(part, depth + 1)?.saturating_mul(times).saturating_add(1))
            }
        }
    }
}

/// Writes a part as a regular expression.
pub fn regex(rules: &Rules, part: &Expression) -> String {
    let all = |parts: &[Expression], between: &str| {
        let parts: Vec<String> = parts.iter().map(|part| regex(rules, part)).collect();
        format!("(?:{})", parts.join(between))
    };
    match part {
        Expression::Literal(text) => text.chars().map(|c| Class::of(c).to_regex()).collect(),
        Expression::Class(class) => class.to_regex(),
        Expression::Lexeme { regex, .. } => regex.clone(),
        Expression::Rule(rule) => regex(rules, &rules.bodies[*rule]),
        Expression::Sequence(parts) => all(parts, ""),
        Expression::Choice(parts) => all(parts, "|"),
        Expression::Repeat { part, least, most } => {
            let most = most.map_or(String::new(), |most| most.to_string());
            format!("(?:{}){{{least},{most}}}", regex(rules, part))
        }
    }
}

/// Writes all rules in llguidance's variant of Lark's syntax.
fn lark(rules: &Rules) -> String {
    let mut writer = Writer { lark: format!("start: r{}\n", rules.root), ..Writer::default() };
    for (rule, body) in rules.bodies.iter().enumerate() {
        let body = writer.written(body);
        writer.lark += &format!("r{rule}: {body}\n");
    }
    for (regex, name) in &writer.lexemes {
        writer.lark += &format!("{name}: /{regex}/\n");
    }
    writer.lark
}

#[derive(Default)]
struct Writer {
    lark: String,
    /// Names of lexemes, by their regular expressions.
    lexemes: HashMap<String, String>,
    /// Parts that became rules.
    parts: usize,
}

impl Writer {
    fn lexeme(&mut self, regex: String) -> String {
        let count = self.lexemes.len();
        self.lexemes.entry(regex).or_insert_with(|| format!("L{count}")).clone()
    }

    /// Returns the name of a part; what has parts of its own becomes a rule, since llguidance does
    /// not read deep groups.
    fn written(&mut self, part: &Expression) -> String {
        let body = match part {
            Expression::Class(class) => return self.lexeme(class.to_regex()),
            Expression::Lexeme { regex, .. } => return self.lexeme(regex.clone()),
            Expression::Rule(rule) => return format!("r{rule}"),
            Expression::Literal(text) => {
                let names = text.chars().map(|c| self.lexeme(Class::of(c).to_regex()));
                names.collect::<Vec<_>>().join(" ")
            }
            Expression::Sequence(parts) => self.all(parts, " "),
            Expression::Choice(parts) => self.all(parts, " | "),
            Expression::Repeat { most: Some(0), .. } => String::new(),
            Expression::Repeat { part, least, most } => {
                let most = most.map_or(String::new(), |most| most.to_string());
                format!("{}{{{least},{most}}}", self.written(part))
            }
        };
        if body.is_empty() {
            return "\"\"".to_owned();
        }
        self.parts += 1;
        self.lark += &format!("p{}: {body}\n", self.parts);
        format!("p{}", self.parts)
    }

    fn all(&mut self, parts: &[Expression], between: &str) -> String {
        parts.iter().map(|part| self.written(part)).collect::<Vec<_>>().join(between)
    }
}
