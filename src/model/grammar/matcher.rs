//! The tokens that a grammar allows in a sequence.

use super::alternatives::Alternatives;
use crate::{
    error::{Error, Result},
    model::{
        generate::{
            constraint::{Constraint, is_allowed},
            reasoning::ReasoningParser,
        },
        tokenizer::{
            chat::{CLOSE, OPEN},
            text::Tokenizer,
            vocabulary::{Vocabulary, failed},
        },
    },
};
use std::mem;

/// A grammar's state after the tokens of a sequence.
pub struct TokenGrammar {
    vocabulary: Vocabulary,
    grammars: Alternatives,
    reasoning: Reasoning,
    ends: Vec<u32>,
    allowed: Vec<u32>,
    is_complete: bool,
}

/// Reasoning before the text that the grammar is for.
pub enum Reasoning {
    /// There is none, or it is over.
    None,
    /// The first token may begin it: this one.
    Possible(u32),
    /// It has begun. These are its last bytes, fewer than its closing mark has.
    Open(Vec<u8>),
}

impl Reasoning {
    /// Of what follows a prompt.
    pub fn after(tokenizer: &Tokenizer, prompt: &[u32]) -> Result<Self> {
        if ReasoningParser::after(tokenizer, prompt)?.is_open() {
            return Ok(Self::Open(Vec::new()));
        }
        // The text of special tokens is left out: nobody would see where the reasoning ends.
        let visible = |mark| tokenizer.token(mark).filter(|&id| !tokenizer.is_special(id));
        Ok(match (visible(OPEN), visible(CLOSE)) {
            (Some(open), Some(_)) => Self::Possible(open),
            _ => Self::None,
        })
    }

    /// Adds the bytes of a token to open reasoning. Returns those behind its closing mark, without
    /// white space before them, if the mark is complete.
    fn push(tail: &mut Vec<u8>, bytes: &[u8]) -> Option<Vec<u8>> {
        tail.extend(bytes);
        let close = CLOSE.as_bytes();
        if let Some(at) = tail.windows(close.len()).position(|bytes| bytes == close) {
            return Some(tail[at + close.len()..].trim_ascii_start().to_vec());
        }
        tail.drain(..tail.len().saturating_sub(close.len() - 1));
        None
    }
}

impl TokenGrammar {
    /// Of grammars at the beginning of a text. Tokens of `ends` end the text.
    pub fn new(
        grammars: Alternatives,
        vocabulary: Vocabulary,
        reasoning: Reasoning,
        ends: &[u32],
    ) -> Result<Self> {
        let (ends, allowed) = (ends.to_vec(), Vec::new());
        let mut state = Self { vocabulary, grammars, reasoning, ends, allowed, is_complete: false };
        state.update()?;
        Ok(state)
    }

    /// Finds what is allowed next.
    fn update(&mut self) -> Result<()> {
        if let Reasoning::Open(_) = self.reasoning {
            self.allowed = vec![u32::MAX; self.vocabulary.tokens().div_ceil(32)];
            // The end that the vocabulary adds is no token of the model.
            let ends = self.ends.iter().copied().chain([self.vocabulary.end()]);
            ends.for_each(|id| set(&mut self.allowed, id, false));
            return Ok(());
        }
        self.allowed.clear();
        self.is_complete = self.grammars.is_stopped();
        if self.is_complete {
            return Ok(());
        }
        let mut mask = self.grammars.mask(&self.vocabulary)?;
        let end = self.vocabulary.end();
        let may_end = mask.is_allowed(end);
        mask.disallow_token(end);
        self.is_complete = mask.is_zero();
        if self.is_complete && !may_end {
            return Err(failed("no token of the model can continue the text"));
        }
        self.allowed.extend(mask.as_slice());
        if may_end {
            // Ends may be beyond the tokenizer's tokens.
            let words = self.ends.iter().map(|&id| id as usize / 32 + 1).max().unwrap_or(0);
            self.allowed.resize(self.allowed.len().max(words), 0);
            self.ends.iter().for_each(|&id| set(&mut self.allowed, id, true));
        }
        if let Reasoning::Possible(open) = self.reasoning {
            set(&mut self.allowed, open, true);
        }
        Ok(())
    }

    /// Appends bytes that came in one token with the closing mark of the reasoning.
    fn append_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let ids = self.vocabulary.tokenize(bytes);
        for id in ids {
            if !self.grammars.push(id, &self.vocabulary)? {
                return Err(failed(format!(
                    "`{}` follows the reasoning in the same token, and is not allowed there",
                    String::from_utf8_lossy(bytes)
                )));
            }
        }
        Ok(())
    }
}

impl Constraint for TokenGrammar {
    fn allowed(&self) -> &[u32] {
        &self.allowed
    }

    fn append(&mut self, id: u32) -> Result<()> {
        if !is_allowed(&self.allowed, id) {
            return Err(not_allowed(id));
        }
        if let Reasoning::Open(tail) = &mut self.reasoning {
            let Some(rest) = Reasoning::push(tail, self.vocabulary.bytes(id)) else {
                return Ok(());
            };
            self.reasoning = Reasoning::None;
            self.append_bytes(&rest)?;
            return self.update();
        }
        if let Reasoning::Possible(open) = mem::replace(&mut self.reasoning, Reasoning::None)
            && open == id
        {
            self.reasoning = Reasoning::Open(Vec::new());
            return self.update();
        }
        if self.ends.contains(&id) {
            self.is_complete = true;
            return Ok(());
        }
        if !self.grammars.push(id, &self.vocabulary)? {
            return Err(not_allowed(id));
        }
        self.update()
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn valid_prefix(&mut self, ids: &[u32]) -> Result<usize> {
        match self.reasoning {
            Reasoning::None => {
                // An end is no token of the grammar, and may come where it is complete.
                // A draft may have tokens beyond the tokenizer's.
                let is_end = |id: &u32| self.ends.contains(id);
                let is_text = |id: &u32| !is_end(id) && *id < self.vocabulary.end();
                let text = ids.iter().position(|id| !is_text(id)).unwrap_or(ids.len());
                let valid = self.grammars.validate(&ids[..text])?;
                let ends = valid == text && ids.get(text).is_none_or(is_end);
                Ok(if ends { ids.len() } else { valid })
            }
            _ => Ok(ids.len()),
        }
    }
}

fn not_allowed(id: u32) -> Error {
    failed(format!("token {id} is not allowed; biases may forbid all tokens that are"))
}

/// Sets the bit of a token, if there is one.
fn set(allowed: &mut [u32], id: u32, to: bool) {
    if let Some(word) = allowed.get_mut(id as usize / 32) {
        let bit = 1 << (id % 32);
        *word = if to { *word | bit } else { *word & !bit };
    }
}
