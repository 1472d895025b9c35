//! A prompt and what continues it: its tokens, their text, and its end.

use super::{
    choice::Chooser,
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

/// Has the session choose the next tokens of these sequences.
pub(super) fn choose_by(session: &mut Session, sequences: &[Sequence]) -> Result<()> {
    let vocab = session.vocab();
    match Chooser::for_engine(sequences.iter().map(|sequence| &sequence.chooser), vocab) {
        Some(choice) => session.choose_by(choice),
        None => Ok(()),
    }
}

/// A step of all sequences of a session: those that have not ended choose their next token. Only what it can be chosen from is read back, the token
/// alone where the engine can choose it. `told`: does the engine know how?
pub(super) async fn step(session: &mut Session, sequences: &mut [Sequence], told: &mut bool) -> Result<()> {
    let tokens: Vec<u32> = sequences.iter().map(|sequence| sequence.chooser.last()).collect();
    let all: Vec<usize> = (0..sequences.len()).collect();
    // Sequences of a batch have the same options; one that has ended has, for its least length, no say.
    let is_live = |sequence: &Sequence| sequence.stop.is_none();
    if sequences.iter().find(|sequence| is_live(sequence)).is_some_and(|sequence| sequence.chooser.is_for_engine()) {
        if !std::mem::replace(told, true) {
            choose_by(session, sequences)?;
        }
        let next = session.step_next(&all, &tokens).await?;
        for (sequence, id) in sequences.iter_mut().zip(next).filter(|(sequence, _)| is_live(sequence)) {
            sequence.chooser.of_engine(id)?;
        }
        return Ok(());
    }
    let mut logits = session.extend(&all, &tokens, 1).await?;
    let vocab = logits.len() / tokens.len();
    for (sequence, row) in sequences.iter_mut().zip(logits.chunks_mut(vocab)).filter(|(sequence, _)| is_live(sequence)) {
        sequence.chooser.of_logits(row)?;
    }
    Ok(())
}
