//! A prompt's continuation, token by token.

use super::{
    choice::Chooser,
    engine::{Pending, TokenLogit},
    feed::{Blocking, Feed, Source},
    options::GenerateOptions,
    session::Session,
    stop::{Stop, Writer},
    worker::Workers,
};
use crate::{
    error::{Error, Result},
    ops::transformer::TopK,
};
use futures_core::Stream;
use std::{
    borrow::Borrow,
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

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
    max_tokens: usize,
    chooser: Chooser,
    writer: Writer,
    prompt: Vec<u32>,
    generated: usize,
    /// Greedy steps that are submitted and not yet awaited.
    pending: VecDeque<Pending<Vec<u32>>>,
    stop: Option<Stop>,
}

impl Generation {
    /// Makes `prompt` the text of the first sequence of a session, and continues it.
    pub(super) fn new(workers: &Arc<Workers>, session: Session, prompt: &[u32], writer: Writer, options: &GenerateOptions) -> Result<Self> {
        session.check_text(prompt)?;
        let chooser = Chooser::new(options, 0, prompt, &writer.ends)?;
        let (max_tokens, prompt, pending) = (options.tokens_after(prompt.len()), prompt.to_vec(), VecDeque::new());
        let run = Run { session, max_tokens, chooser, writer, prompt, generated: 0, pending, stop: None };
        Ok(match max_tokens {
            0 => Self { feed: Feed::empty(run), stop: Some(Stop::MaxTokens) },
            _ => Self { feed: Feed::new(run, workers), stop: None },
        })
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
        let token = self.token().await?;
        Ok(((token, self.stop), self.stop.is_some()))
    }

    /// The session with the text so far, without the steps that were submitted ahead.
    fn rest(mut self) -> Session {
        if self.generated > 0 {
            // The last token was chosen, and not yet appended.
            let tokens = self.chooser.tokens();
            self.session.settle(0, &tokens[..tokens.len() - 1]);
        }
        self.session
    }
}

impl Run {
    async fn token(&mut self) -> Result<Token> {
        let id = match self.generated {
            0 => self.first().await?,
            _ => self.following().await?,
        };
        self.generated += 1;
        if self.writer.ends.contains(&id) {
            self.stop = Some(Stop::EndOfText);
        } else if self.generated == self.max_tokens {
            self.stop = Some(Stop::MaxTokens);
        } else if self.pending.is_empty() && !self.session.has_room() {
            self.stop = Some(Stop::Context);
        }
        let text = self.writer.push(id, &mut self.stop)?;
        Ok(Token { id, text })
    }

    async fn first(&mut self) -> Result<u32> {
        let prompt = std::mem::take(&mut self.prompt);
        let mut logits = self.session.set_text(0, &prompt).await?;
        self.chooser.of_logits(&mut logits)
    }

    async fn following(&mut self) -> Result<u32> {
        if self.chooser.wanted() == Some(1) {
            return self.greedy().await;
        }
        step(&mut self.session, &mut [(&mut self.chooser, true)]).await?;
        Ok(self.chooser.last())
    }

    /// Steps are submitted ahead of the one that is awaited: a token need not come back before the next step begins.
    async fn greedy(&mut self) -> Result<u32> {
        let next = match self.pending.pop_front() {
            Some(next) => next,
            None => self.session.submit_greedy(Some(&[self.chooser.last()]))?,
        };
        let ahead = self.session.steps_ahead().min(self.max_tokens - self.generated - 1);
        while self.pending.len() < ahead && self.session.has_room() {
            self.pending.push_back(self.session.submit_greedy(None)?);
        }
        match next.await?.first() {
            Some(&id) if id != TopK::NONE => Ok(self.chooser.chosen(id)),
            _ => Err(Error::Invalid { op: "generate", what: "the logits are not finite".into() }),
        }
    }
}

/// A step of all sequences: those that go on choose their next token. Only what it can be chosen from is read back.
pub(super) async fn step(session: &mut Session, choosers: &mut [(&mut Chooser, bool)]) -> Result<()> {
    let tokens: Vec<u32> = choosers.iter().map(|(chooser, _)| chooser.last()).collect();
    // Sequences of a batch have the same options.
    match choosers.first().and_then(|(chooser, _)| chooser.wanted()) {
        Some(k) => {
            let top: Vec<Vec<TokenLogit>> = session.decode_top(&tokens, k).await?;
            for ((chooser, _), top) in choosers.iter_mut().zip(top).filter(|((_, goes_on), _)| *goes_on) {
                chooser.of_top(top)?;
            }
        }
        None => {
            let mut logits = session.decode(&tokens).await?;
            let vocab = logits.len() / tokens.len();
            let rows = logits.chunks_mut(vocab);
            for ((chooser, _), row) in choosers.iter_mut().zip(rows).filter(|((_, goes_on), _)| *goes_on) {
                chooser.of_logits(row)?;
            }
        }
    }
    Ok(())
}
