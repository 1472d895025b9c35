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

/// A step of some sequences of a session, by their numbers, in ascending order: each chooses its next token, or has none to choose for what is wrong with
/// it alone. Where all want the same and the engine can choose, it does, and only tokens are read back. `told`: does the engine know how these choose?
pub(super) async fn step(session: &mut Session, live: &mut [(usize, &mut Sequence)], told: &mut bool) -> Result<Vec<Result<u32>>> {
    let slots: Vec<usize> = live.iter().map(|(slot, _)| *slot).collect();
    let tokens: Vec<u32> = live.iter().map(|(_, sequence)| sequence.chooser.last()).collect();
    if Chooser::are_for_engine(live.iter().map(|(_, sequence)| &sequence.chooser)) {
        if !std::mem::replace(told, true) {
            choose_by(session, live)?;
        }
        let next = next(session, &slots, &tokens).await?;
        return Ok(live.iter_mut().zip(next).map(|((_, sequence), id)| sequence.chooser.of_engine(id)).collect());
    }
    // The engine does not see what is chosen here.
    *told = false;
    let mut logits = extend(session, &slots, &tokens, true).await?;
    let rows = logits.chunks_mut(session.vocab());
    Ok(live.iter_mut().zip(rows).map(|((_, sequence), row)| sequence.chooser.of_logits(row)).collect())
}

/// Has the session choose the next tokens of these sequences.
pub(super) fn choose_by(session: &mut Session, live: &[(usize, &mut Sequence)]) -> Result<()> {
    let (slots, vocab) = (session.options().sequences, session.vocab());
    match Chooser::for_engine(live.iter().map(|(slot, sequence)| (*slot, &sequence.chooser)), slots, vocab) {
        Some(choice) => session.choose_by(choice),
        None => Ok(()),
    }
}

/// Appends `tokens`, as many to each of some sequences, to these alone. Gives the logits after the last of each, if they are wanted.
pub(super) async fn extend(session: &mut Session, slots: &[usize], tokens: &[u32], wanted: bool) -> Result<Vec<f32>> {
    let run = tokens.len() / slots.len();
    if run == 1 && slots.len() == session.options().sequences {
        return session.decode(tokens).await;
    }
    let mut logits = Vec::new();
    for (&slot, tokens) in slots.iter().zip(tokens.chunks(run)) {
        logits.extend(session.prefill(slot, tokens).await?);
    }
    Ok(if wanted { logits } else { Vec::new() })
}

/// Appends a token to each of some sequences, and to these alone. Gives the next of each.
async fn next(session: &mut Session, slots: &[usize], tokens: &[u32]) -> Result<Vec<u32>> {
    let sequences = session.options().sequences;
    // All step; others forget it again, for which there must be room.
    let mut all = vec![0; sequences];
    slots.iter().zip(tokens).for_each(|(&slot, &token)| all[slot] = token);
    let others: Vec<usize> = (0..sequences).filter(|slot| !slots.contains(slot)).collect();
    for &other in &others {
        session.truncate(other, session.options().capacity - 1)?;
    }
    let lengths: Vec<usize> = others.iter().map(|&other| session.len(other)).collect();
    let next = session.decode_next(&all).await?;
    for (&other, length) in others.iter().zip(lengths) {
        session.truncate(other, length)?;
    }
    Ok(slots.iter().map(|&slot| next[slot]).collect())
}
