//! A prompt and what continues it: its tokens, their text, and its end.

use super::{
    chooser::Chooser,
    constraint::Constraint,
    logprobs::TokenLogprobs,
    options::GenerateOptions,
    stop::{Stop, Writer},
};
use crate::{
    error::{Error, Result},
    model::session::sequences::Session,
};

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The text that it completes: often none, since a character may take several tokens. Special
    /// tokens have none, nor have all tokens of a model without a tokenizer.
    pub text: String,
    /// Its log-probability and those of the most likely tokens, with
    /// [`GenerateOptions::logprobs`](crate::model::GenerateOptions::logprobs).
    pub logprobs: Option<TokenLogprobs>,
}

/// The state of one sequence.
pub(crate) struct Sequence {
    pub chooser: Chooser,
    writer: Writer,
    max_tokens: usize,
    /// Why it ended, if it did.
    pub stop: Option<Stop>,
}

impl Sequence {
    /// For the n-th prompt of a batch, which draws its random numbers from seed + n. Tokens of
    /// `ends` end the text.
    pub fn new(
        options: &GenerateOptions,
        n: usize,
        text: &[u32],
        ends: &[u32],
        mut writer: Writer,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Self> {
        let resumed = options.resumed;
        if resumed > 0 && resumed >= text.len() {
            let what = format!("`resumed` is {resumed}; the prompt has {} tokens", text.len());
            return Err(Error::Invalid { op: "generate", what });
        }
        let (prompt, before) = text.split_at(text.len() - resumed);
        writer.follow(prompt);
        let max_tokens = options.tokens_after(prompt.len());
        let chooser = Chooser::new(options, n as u64, prompt, ends)?.constrained(constraint);
        let stop = chooser.is_complete().then_some(Stop::EndOfText);
        let mut sequence = Self {
            stop: stop.or((max_tokens == 0).then_some(Stop::MaxTokens)),
            chooser,
            writer,
            max_tokens,
        };
        for &id in before {
            if sequence.stop.is_none() {
                sequence.chooser.resume(id)?;
                // Who had the token has its text.
                sequence.take(false)?;
            }
        }
        Ok(sequence)
    }

    /// How many tokens it may still have.
    pub fn left(&self) -> usize {
        self.max_tokens - self.chooser.generated()
    }

    /// The token that was chosen last; `full` says that there is no room for it in the session.
    pub fn take(&mut self, full: bool) -> Result<Token> {
        let id = self.chooser.last();
        self.stop = if self.chooser.is_end(id) || self.chooser.is_complete() {
            Some(Stop::EndOfText)
        } else if self.left() == 0 {
            Some(Stop::MaxTokens)
        } else {
            full.then_some(Stop::Context)
        };
        let text = self.writer.push(id, &mut self.stop)?;
        Ok(Token { id, text, logprobs: self.chooser.take_logprobs() })
    }
}

/// A step of some sequences of a session, by their numbers, in ascending order, of which the host
/// chooses: each has its next token, or none for what is wrong with it alone. The engine does not
/// see what is chosen, and has to be told anew before it goes on.
pub(crate) async fn step(
    session: &mut Session,
    live: &mut [(usize, &mut Sequence)],
) -> Result<Vec<Result<u32>>> {
    let slots: Vec<usize> = live.iter().map(|(slot, _)| *slot).collect();
    let tokens: Vec<u32> = live.iter().map(|(_, sequence)| sequence.chooser.last()).collect();
    let mut logits = session.extend(&slots, &tokens, 1).await?;
    let rows = logits.chunks_mut(session.vocab());
    Ok(live
        .iter_mut()
        .zip(rows)
        .map(|((_, sequence), row)| sequence.chooser.of_logits(row))
        .collect())
}

/// Has the session choose the next tokens of these sequences. The `bool` of each says whether the
/// engine has its counts.
pub(crate) fn choose_by<'a>(
    session: &mut Session,
    choosers: impl Iterator<Item = (usize, &'a Chooser, bool)>,
) -> Result<()> {
    let (slots, vocab) = (session.options().sequences, session.vocab());
    session.choose_by(Chooser::for_engine(choosers, slots, vocab))
}
