//! Grammars without a model: errors, hostile input, and texts by random allowed tokens.

mod errors;
mod gbnf;
mod hostile;
mod schemas;

use super::*;
use bitnet_wgpu::{internals::GrammarWalk, model::Grammar};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// Tokens of a text by random choices; no text where it does not end soon.
fn random_text(
    grammar: &Grammar,
    tokenizer: &Tokenizer,
    rng: &mut SmallRng,
    most: usize,
) -> Result<Option<String>> {
    let ends = tokenizer.eos();
    let (mut walk, mut ids) = (GrammarWalk::new(grammar, tokenizer, ends)?, Vec::new());
    while !walk.is_complete() {
        let allowed = walk.allowed();
        let end = allowed.iter().find(|id| ends.contains(id));
        let id = match end {
            Some(&end) if rng.random_bool(0.5) => end,
            _ => allowed[rng.random_range(0..allowed.len())],
        };
        walk.append(id)?;
        ids.push(id);
        if ids.len() > most {
            return Ok(None);
        }
    }
    tokenizer.decode(&ids).map(Some)
}

fn grammar_error(result: Result<Grammar>) -> String {
    match result {
        Err(Error::Grammar { message }) => message,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no error"),
    }
}
