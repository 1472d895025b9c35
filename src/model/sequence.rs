//! A prompt and what continues it: its tokens, their text, and its end.

use super::{
    choice::Chooser,
    engine::TokenLogit,
    options::GenerateOptions,
    session::Session,
    stop::{Stop, Writer},
};
use crate::error::Result;

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The text that it completes: often none, since a character may take several tokens. Special tokens have none, nor have all tokens of a
    /// model without a tokenizer.
    pub text: String,
}

/// The state of one sequence.
pub(super) struct Sequence {
    pub chooser: Chooser,
    writer: Writer,
    max_tokens: usize,
    /// Why it ended, if it did.
    pub stop: Option<Stop>,
}

impl Sequence {
    /// For the n-th prompt of a batch, which draws its random numbers from seed + n. Tokens of `ends` end the text.
    pub fn new(options: &GenerateOptions, n: usize, prompt: &[u32], ends: &[u32], mut writer: Writer) -> Result<Self> {
        writer.follow(prompt);
        let max_tokens = options.tokens_after(prompt.len());
        let stop = (max_tokens == 0).then_some(Stop::MaxTokens);
        Ok(Self { chooser: Chooser::new(options, n as u64, prompt, ends)?, writer, max_tokens, stop })
    }

    /// How many tokens it may still have.
    pub fn left(&self) -> usize {
        self.max_tokens - self.chooser.generated()
    }

    /// The token that was chosen last; `full` says that there is no room for it in the session.
    pub fn take(&mut self, full: bool) -> Result<Token> {
        let id = self.chooser.last();
        self.stop = if self.chooser.is_end(id) {
            Some(Stop::EndOfText)
        } else if self.left() == 0 {
            Some(Stop::MaxTokens)
        } else {
            full.then_some(Stop::Context)
        };
        let text = self.writer.push(id, &mut self.stop)?;
        Ok(Token { id, text })
    }
}

/// A step of all sequences of a session: those that have not ended choose their next token. Only what it can be chosen from is read back.
pub(super) async fn step(session: &mut Session, sequences: &mut [Sequence]) -> Result<()> {
    let tokens: Vec<u32> = sequences.iter().map(|sequence| sequence.chooser.last()).collect();
    // Sequences of a batch have the same options; one that has ended has, for its least length, no say.
    let wanted = sequences.iter().find(|sequence| sequence.stop.is_none()).and_then(|sequence| sequence.chooser.wanted());
    match wanted {
        Some(k) => {
            let top: Vec<Vec<TokenLogit>> = session.decode_top(&tokens, k).await?;
            for (sequence, top) in sequences.iter_mut().zip(top).filter(|(sequence, _)| sequence.stop.is_none()) {
                sequence.chooser.of_top(top)?;
            }
        }
        None => {
            let mut logits = session.decode(&tokens).await?;
            let vocab = logits.len() / tokens.len();
            for (sequence, row) in sequences.iter_mut().zip(logits.chunks_mut(vocab)).filter(|(sequence, _)| sequence.stop.is_none()) {
                sequence.chooser.of_logits(row)?;
            }
        }
    }
    Ok(())
}
