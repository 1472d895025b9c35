//! Writes rules as llguidance reads them.
//!
//! llguidance reads a text in lexemes, and takes the longest; GBNF has no lexemes. So each character
//! is a lexeme of its own, but for parts that are found to be clear of others. Rules that do not
//! refer to themselves are one regular expression together, which is faster.

use super::{
    expression::{Class, Expression, Rules},
    lexemes::with_lexemes,
    regular::{Regular, regex},
};
use crate::limits::grammar::MOST_EXPANDED;
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
