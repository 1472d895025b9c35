//! Rules that are regular, and their regular expressions.

use super::expression::{Class, Expression, Rules};
use crate::limits::grammar::MOST_DEPTH;
use std::collections::HashMap;

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
