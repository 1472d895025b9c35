//! Patterns of a tokenizer.json, which come from strangers, on texts that come from other
//! strangers. `fancy-regex` bounds the backtracking of one search by a million steps, and searches
//! once for each match. The `regex` crate is linear in one search, and quadratic in all of them for
//! a pattern such as `a*b|a`. This matcher counts the steps of a whole text instead: it backtracks,
//! finds what `fancy-regex` finds, and stops when they are used up.
//!
//! The syntax is parsed by `fancy-regex` and `regex-syntax`. What published tokenizers do not use
//! (back-references, conditions, `\K`, `\G`) is refused.

mod compile;
mod find;

pub use compile::Pattern;
pub use find::OutOfSteps;

#[cfg(test)]
mod tests;
