//! A prompt's continuation, token by token.

use super::{
    engine::Pending,
    feed::{Blocking, Feed, Source},
    sequence::{Sequence, Token, choose_by, step},
    session::Session,
    stop::Stop,
    worker::Workers,
};
use crate::error::{Error, Result};
use futures_core::Stream;
use std::{
    borrow::Borrow,
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// A continuation: a [`Stream`] of tokens, or by a `for` loop (which blocks) an iterator. From the first that is asked for, they are computed on a
/// thread of its own, a few tokens ahead of who takes them. Dropped, it ends within one token, or one batch of the prompt.
///
/// ```no_run
/// # async fn story(model: bitnet_wgpu::model::Model) -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::model::GenerateOptions;
///
/// let mut story = model.generate("Once upon a time", &GenerateOptions::default())?;
/// while let Some(token) = story.next_token().await {
///     print!("{}", token?.text);
/// }
/// println!("({:?})", story.stop());
/// # Ok(())
/// # }
/// ```
pub struct Generation {
    feed: Feed<Run>,
    stop: Option<Stop>,
}

/// The state of a generation.
struct Run {
    session: Session,
    sequence: Sequence,
    /// Does the engine know how to choose?
    told: bool,
    /// Steps that are submitted and not yet awaited.
    pending: VecDeque<Pending<Vec<u32>>>,
}

impl Generation {
    /// Makes the sequence's prompt the text of the first sequence of a session, and continues it.
    pub(super) fn new(workers: &Arc<Workers>, session: Session, sequence: Sequence) -> Self {
        let stop = sequence.stop;
        let run = Run { session, sequence, told: false, pending: VecDeque::new() };
        Self { feed: if stop.is_some() { Feed::empty(run) } else { Feed::new(run, workers) }, stop }
    }

    /// The next token, as a future for any executor; none after the last. (`StreamExt::next` does the same.)
    pub async fn next_token(&mut self) -> Option<Result<Token>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Why it ended; none while there are tokens to take.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// Ends it, and gives back the session with the text so far, for [`Model::generate_in`](super::Model::generate_in). The last token generated is
    /// not in it yet.
    ///
    /// # Errors
    /// [`Error::Gpu`] if its thread panicked.
    pub async fn into_session(self) -> Result<Session> {
        self.feed.into_rest().await
    }
}

impl Stream for Generation {
    type Item = Result<Token>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.feed.poll_next(cx).map(|item| {
            item.map(|item| {
                let (token, stop) = item?;
                self.stop = stop;
                Ok(token)
            })
        })
    }
}

impl<G: Borrow<Generation>> Blocking<G> {
    /// [`Generation::stop`].
    pub fn stop(&self) -> Option<Stop> {
        self.0.borrow().stop()
    }
}

impl IntoIterator for Generation {
    type Item = Result<Token>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Blocking<Self> {
        Blocking(self)
    }
}

impl IntoIterator for &mut Generation {
    type Item = Result<Token>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Blocking<Self> {
        Blocking(self)
    }
}

impl Source for Run {
    type Item = (Token, Option<Stop>);
    type Rest = Session;

    async fn next(&mut self) -> Result<(Self::Item, bool)> {
        self.choose().await?;
        let full = self.pending.is_empty() && self.session.room(0) == 0;
        let token = self.sequence.take(full)?;
        let stop = self.sequence.stop;
        Ok(((token, stop), stop.is_some()))
    }

    /// The session with the text so far, without the steps that were submitted ahead.
    fn rest(mut self) -> Session {
        if self.sequence.chooser.generated() > 0 {
            // The last token was chosen, and not yet appended.
            let tokens = self.sequence.chooser.tokens();
            self.session.settle(0, &tokens[..tokens.len() - 1]);
        }
        self.session
    }
}

impl Run {
    /// Chooses the next token.
    async fn choose(&mut self) -> Result<()> {
        let chooser = &mut self.sequence.chooser;
        if chooser.generated() == 0 {
            let mut logits = self.session.set_text(0, chooser.tokens()).await?;
            return chooser.of_logits(&mut logits).map(drop);
        }
        if chooser.is_for_engine() {
            return self.ahead().await;
        }
        let chosen = step(&mut self.session, &mut [(0, &mut self.sequence)], &mut self.told).await?;
        chosen.into_iter().try_for_each(|chosen| chosen.map(drop))
    }

    /// Steps are submitted ahead of the one that is awaited: a token need not come back before the next step begins.
    async fn ahead(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.told, true) {
            choose_by(&mut self.session, &[(0, &mut self.sequence)])?;
        }
        let next = match self.pending.pop_front() {
            Some(next) => next,
            None => self.session.submit_next(&[0], Some(&[self.sequence.chooser.last()]))?,
        };
        let ahead = self.session.steps_ahead().min(self.sequence.left() - 1);
        while self.pending.len() < ahead && self.session.room(0) > 0 {
            self.pending.push_back(self.session.submit_next(&[0], None)?);
        }
        let next = next.await?;
        let &id = next.first().ok_or_else(|| Error::Invalid { op: "generate", what: "no sequence".into() })?;
        self.sequence.chooser.of_engine(id).map(drop)
    }
}
