//! GBNF, llama.cpp's syntax of grammars.

mod automaton;
mod expression;
mod lexemes;
mod parse;
mod regular;
mod translate;

use super::bounds::check_length;
use crate::error::Result;
use llguidance::api::TopLevelGrammar;

/// Returns a grammar as llguidance has it.
///
/// # Errors
/// [`Error::Grammar`](crate::Error::Grammar) with line and column for what is wrong.
pub fn read(source: &str) -> Result<TopLevelGrammar> {
    check_length(source)?;
    Ok(translate::translate(parse::parse(source)?))
}

/// Returns whether the first rule of a grammar is one of GBNF: `name ::=`.
pub fn is_gbnf(source: &str) -> bool {
    let is_comment = |line: &&str| line.is_empty() || line.starts_with('#');
    let first = source.lines().map(str::trim).find(|line| !is_comment(line));
    first.is_some_and(|line| {
        let name = line.trim_start_matches(parse::is_name);
        name.len() < line.len() && name.trim_start().starts_with("::=")
    })
}
