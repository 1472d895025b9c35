//! Finds parts that can be read as one lexeme, such as strings in quotes: repetitions with what is
//! beside them. Without these, the mask for a character of a string would take a step of the parser
//! for each character of each token.

use super::{
    automaton::Automaton,
    expression::{Class, Expression, Rules},
    regular::{Regular, regex},
};
use crate::limits::grammar::{MOST_LEXEME, MOST_LEXEMES};
use std::collections::{HashMap, HashSet};

/// Rounds in which lexemes are given up.
const ROUNDS: usize = 8;

/// Returns the same rules with lexemes. A text is read in them only if no lexeme begins another, and
/// nothing else that may come there begins with the same character.
pub fn with_lexemes(rules: Rules) -> Rules {
    let mut finder = Finder {
        rules: &rules,
        sizes: Regular::new(&rules),
        known: HashMap::new(),
        given_up: HashSet::new(),
    };
    for _ in 0..ROUNDS {
        let bodies = rules.bodies.iter().map(|body| finder.replaced(body)).collect();
        let replaced = Rules { root: rules.root, bodies };
        let root = Expression::Rule(rules.root);
        match Automaton::new(&replaced, &root).ambiguous() {
            None => break,
            Some(ambiguous) if ambiguous.is_empty() => return replaced,
            Some(ambiguous) => finder.given_up.extend(ambiguous),
        }
    }
    rules
}

struct Finder<'a> {
    rules: &'a Rules,
    sizes: Regular<'a>,
    /// The class of the first character of each regular expression that can be a lexeme.
    known: HashMap<String, Option<Class>>,
    given_up: HashSet<String>,
}

impl Finder<'_> {
    /// A part with lexemes in the place of what they match.
    fn replaced(&mut self, part: &Expression) -> Expression {
        match part {
            Expression::Sequence(parts) => {
                let (mut rest, mut all) = (&parts[..], Vec::new());
                while !rest.is_empty() {
                    // A repetition between two others, or before another.
                    let found = [(3, 1), (2, 0)].into_iter().find_map(|(length, repeated)| {
                        let parts = rest.get(..length)?;
                        matches!(parts[repeated], Expression::Repeat { most: None, .. })
                            .then(|| self.lexeme(parts))?
                            .map(|lexeme| (length, lexeme))
                    });
                    let (length, part) = found.unwrap_or_else(|| (1, self.replaced(&rest[0])));
                    all.push(part);
                    rest = &rest[length..];
                }
                Expression::Sequence(all)
            }
            Expression::Choice(parts) => {
                Expression::Choice(parts.iter().map(|part| self.replaced(part)).collect())
            }
            Expression::Repeat { part, least, most } => {
                let part = Box::new(self.replaced(part));
                Expression::Repeat { part, least: *least, most: *most }
            }
            _ => part.clone(),
        }
    }

    /// The lexeme of some parts, if they can be one.
    fn lexeme(&mut self, parts: &[Expression]) -> Option<Expression> {
        let whole = Expression::Sequence(parts.to_vec());
        let size = self.sizes.size(&whole, 0)?;
        let regex = (size <= MOST_LEXEME).then(|| regex(self.rules, &whole))?;
        let is_known = self.known.contains_key(&regex);
        if self.given_up.contains(&regex) || !is_known && self.known.len() >= MOST_LEXEMES {
            return None;
        }
        let first = || Automaton::new(self.rules, &whole).prefix_free();
        let first = self.known.entry(regex.clone()).or_insert_with(first).clone()?;
        Some(Expression::Lexeme { regex, first })
    }
}
