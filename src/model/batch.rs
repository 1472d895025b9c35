//! Several prompts, continued side by side, in one step for all of them.

use super::{
    feed::{Blocking, Feed, Source},
    sequence::{Sequence, Token, step},
    session::Session,
    stop::Stop,
    worker::{Workers, yield_now},
};
use crate::error::Result;
use futures_core::Stream;
use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// A token of one of the sequences of a [`BatchGeneration`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BatchToken {
    /// Which prompt it continues.
    pub sequence: usize,
    /// The token.
    pub token: Token,
    /// Why the sequence ended, if this is its last token.
    pub stop: Option<Stop>,
}

/// What came of one prompt of a batch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Generated {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Their text; empty for a model without a tokenizer.
    pub text: String,
    /// Why it ended.
    pub stop: Stop,
}

/// The continuations of several prompts: a [`Stream`] of tokens, or by a `for` loop (which blocks) an iterator. It computes as a
/// [`Generation`](super::Generation) does, and ends like one when it is dropped.
///
/// ```no_run
/// # async fn stories(model: bitnet_wgpu::model::Model) -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::model::GenerateOptions;
///
/// let mut stories = model.generate_batch(&["Once upon a time", "The bear"], &GenerateOptions::default())?;
/// while let Some(next) = stories.next_token().await {
///     let next = next?;
///     println!("{}: {:?} {:?}", next.sequence, next.token.text, next.stop);
/// }
/// # Ok(())
/// # }
/// ```
pub struct BatchGeneration {
    feed: Feed<Run>,
    sequences: usize,
}

impl BatchGeneration {
    /// Continues prompts in an empty session; none for nothing to do.
    pub(super) fn new(workers: &Arc<Workers>, session: Session, sequences: Vec<Sequence>) -> Self {
        let count = sequences.len();
        let run = Run { session, sequences, taken: VecDeque::new(), begun: false, told: false };
        Self { feed: if run.ended() { Feed::empty(run) } else { Feed::new(run, workers) }, sequences: count }
    }

    /// The next token of any sequence, as a future for any executor; none after the last. Tokens of one sequence come in their order.
    pub async fn next_token(&mut self) -> Option<Result<BatchToken>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// All that is left, by sequence.
    ///
    /// # Errors
    /// What a device reports; [`Error::Invalid`](crate::Error::Invalid) for logits that are not finite.
    pub async fn all(mut self) -> Result<Vec<Generated>> {
        // A sequence without tokens ended because none were wanted.
        let mut all = vec![Generated { ids: Vec::new(), text: String::new(), stop: Stop::MaxTokens }; self.sequences];
        while let Some(next) = self.next_token().await {
            let BatchToken { sequence, token, stop } = next?;
            let generated = &mut all[sequence];
            generated.ids.push(token.id);
            generated.text += &token.text;
            generated.stop = stop.unwrap_or(generated.stop);
        }
        Ok(all)
    }
}

impl Stream for BatchGeneration {
    type Item = Result<BatchToken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.feed.poll_next(cx)
    }
}

impl IntoIterator for BatchGeneration {
    type Item = Result<BatchToken>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Blocking<Self> {
        Blocking(self)
    }
}

/// The state of a batch.
struct Run {
    session: Session,
    sequences: Vec<Sequence>,
    /// Tokens of the last step that wait for their turn.
    taken: VecDeque<BatchToken>,
    begun: bool,
    /// Does the engine know how to choose?
    told: bool,
}

impl Source for Run {
    type Item = BatchToken;
    type Rest = ();

    async fn next(&mut self) -> Result<(BatchToken, bool)> {
        loop {
            if let Some(token) = self.taken.pop_front() {
                return Ok((token, self.taken.is_empty() && self.ended()));
            }
            if self.begun {
                yield_now().await;
                step(&mut self.session, &mut self.sequences, &mut self.told).await?;
            } else {
                self.begin().await?;
            }
            self.take()?;
        }
    }

    fn rest(self) {}
}

impl Run {
    fn ended(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.stop.is_some())
    }

    /// Computes the prompts, and chooses the first tokens.
    async fn begin(&mut self) -> Result<()> {
        for (n, sequence) in self.sequences.iter_mut().enumerate() {
            if sequence.stop.is_some() {
                continue;
            }
            let mut logits = self.session.prefill(n, sequence.chooser.tokens()).await?;
            sequence.chooser.of_logits(&mut logits)?;
        }
        self.begun = true;
        Ok(())
    }

    /// Takes the tokens that were chosen last.
    fn take(&mut self) -> Result<()> {
        let capacity = self.session.options().capacity;
        for (n, sequence) in self.sequences.iter_mut().enumerate() {
            if sequence.stop.is_none() {
                let token = sequence.take(self.session.len(n) == capacity)?;
                self.taken.push_back(BatchToken { sequence: n, token, stop: sequence.stop });
            }
            if sequence.stop.is_some() {
                // A finished sequence is still stepped with the batch, its output ignored; emptied, it never runs out of room.
                self.session.truncate(n, 0)?;
            }
        }
        Ok(())
    }
}
