//! A prompt's continuation, token by token.

use super::{
    choice::Chooser,
    engine::{Pending, TokenLogit},
    options::GenerateOptions,
    session::Session,
    stop::{Stop, Writer},
    worker::{self, Work, Workers},
};
use crate::{
    error::{Error, Result},
    ops::transformer::TopK,
};
use futures_core::Stream;
use futures_intrusive::channel::shared::{OneshotReceiver, channel, oneshot_channel};
use std::{
    borrow::{Borrow, BorrowMut},
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
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
    state: State,
    stop: Option<Stop>,
}

enum State {
    /// Nobody has asked for a token yet.
    New(Box<Run>, Arc<Workers>),
    // Dropped in this order: the channel closes before the work is given up.
    Running(Tokens, Begun),
    /// All tokens were taken.
    Ended(Begun),
    /// It had nothing to generate.
    Idle(Box<Session>),
    Failed,
}

/// What has begun on a thread: gives the session back when it ends.
struct Begun {
    session: OneshotReceiver<Session>,
    _work: Work,
}

/// The tokens as they come from the thread.
type Tokens = Pin<Box<dyn Stream<Item = Message> + Send>>;

/// A token, and whether it is the last.
type Message = Result<(Token, Option<Stop>)>;

/// Tokens that wait for being taken; with so many, the thread waits.
const AHEAD: usize = 4;

/// The tokens of a [`Generation`], each waited for on this thread.
pub struct Blocking<G>(G);

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
        let chooser = Chooser::new(options, 0, prompt)?;
        let max_tokens = options.max_tokens;
        if max_tokens == 0 {
            return Ok(Self { state: State::Idle(Box::new(session)), stop: Some(Stop::MaxTokens) });
        }
        let (prompt, pending) = (prompt.to_vec(), VecDeque::new());
        let run = Run { session, max_tokens, chooser, writer, prompt, generated: 0, pending, stop: None };
        Ok(Self { state: State::New(Box::new(run), workers.clone()), stop: None })
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
        match self.state {
            State::New(run, _) => Ok(run.session),
            State::Idle(session) => Ok(*session),
            State::Running(tokens, begun) => {
                // What has nobody to listen to it ends.
                drop(tokens);
                begun.session.receive().await.ok_or_else(worker::stopped)
            }
            State::Ended(begun) => begun.session.receive().await.ok_or_else(worker::stopped),
            State::Failed => Err(worker::stopped()),
        }
    }
}

impl Stream for Generation {
    type Item = Result<Token>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        let (mut tokens, begun) = match std::mem::replace(&mut self.state, State::Failed) {
            State::New(run, workers) => match run.start(&workers) {
                Ok(started) => started,
                Err(error) => return Poll::Ready(Some(Err(error))),
            },
            State::Running(tokens, begun) => (tokens, begun),
            other => {
                self.state = other;
                return Poll::Ready(None);
            }
        };
        let Poll::Ready(message) = tokens.as_mut().poll_next(cx) else {
            self.state = State::Running(tokens, begun);
            return Poll::Pending;
        };
        let token = match message {
            Some(message) => message.map(|(token, stop)| {
                self.stop = stop;
                token
            }),
            None => Err(worker::stopped()),
        };
        // After an error nothing follows.
        let last = token.is_err() || self.stop.is_some();
        self.state = if last { State::Ended(begun) } else { State::Running(tokens, begun) };
        Poll::Ready(Some(token))
    }
}

impl<G: BorrowMut<Generation>> Iterator for Blocking<G> {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Result<Token>> {
        pollster::block_on(self.0.borrow_mut().next_token())
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

impl<'a> IntoIterator for &'a mut Generation {
    type Item = Result<Token>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Blocking<&'a mut Generation> {
        Blocking(self)
    }
}

impl Run {
    /// Begins, on a thread of its own.
    fn start(mut self: Box<Self>, workers: &Arc<Workers>) -> Result<(Tokens, Begun)> {
        let (sender, receiver) = channel(AHEAD);
        let (back, session) = oneshot_channel();
        let _work = workers.spawn(async move {
            loop {
                let message = self.token().await.map(|token| (token, self.stop));
                let last = message.is_err() || self.stop.is_some();
                // It fails where nobody listens any more.
                if sender.send(message).await.is_err() || last {
                    break;
                }
            }
            // It fails where nobody wants it back.
            let _ = back.send(self.into_session());
        })?;
        Ok((Box::pin(receiver.into_stream()), Begun { session, _work }))
    }

    /// The session with the text so far, without the steps that were submitted ahead.
    fn into_session(mut self: Box<Self>) -> Session {
        if self.generated > 0 {
            // The last token was chosen, and not yet appended.
            let tokens = self.chooser.tokens();
            self.session.settle(0, &tokens[..tokens.len() - 1]);
        }
        self.session
    }

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

/// A sequence of a batch.
struct Sequence {
    chooser: Chooser,
    writer: Writer,
    ids: Vec<u32>,
    text: String,
    stop: Option<Stop>,
}

impl Sequence {
    /// Takes the token that was chosen last; `full` says that there is no room for it in the session.
    fn take(&mut self, max_tokens: usize, full: bool) -> Result<()> {
        let id = self.chooser.last();
        self.ids.push(id);
        self.stop = if self.writer.ends.contains(&id) {
            Some(Stop::EndOfText)
        } else if self.ids.len() == max_tokens {
            Some(Stop::MaxTokens)
        } else {
            full.then_some(Stop::Context)
        };
        self.text += &self.writer.push(id, &mut self.stop)?;
        Ok(())
    }
}

/// Continues prompts side by side in an empty session.
pub(super) async fn batch(mut session: Session, prompts: &[Vec<u32>], writer: Writer, options: &GenerateOptions) -> Result<Vec<Generated>> {
    let capacity = session.options().capacity;
    let mut sequences = Vec::new();
    for (n, prompt) in prompts.iter().enumerate() {
        let mut chooser = Chooser::new(options, n as u64, prompt)?;
        chooser.of_logits(&mut session.prefill(n, prompt).await?)?;
        sequences.push(Sequence { chooser, writer: writer.clone(), ids: Vec::new(), text: String::new(), stop: None });
    }
    loop {
        for (n, sequence) in sequences.iter_mut().enumerate() {
            if sequence.stop.is_none() {
                sequence.take(options.max_tokens, session.len(n) == capacity)?;
            }
            if sequence.stop.is_some() {
                // A finished sequence is still stepped with the batch, its output ignored; emptied, it never runs out of room.
                session.truncate(n, 0)?;
            }
        }
        if sequences.iter().all(|sequence| sequence.stop.is_some()) {
            let generated = |Sequence { ids, text, stop, .. }| Generated { ids, text, stop: stop.unwrap_or(Stop::Context) };
            return Ok(sequences.into_iter().map(generated).collect());
        }
        worker::yield_now().await;
        let mut choosers: Vec<_> = sequences.iter_mut().map(|sequence| (&mut sequence.chooser, sequence.stop.is_none())).collect();
        step(&mut session, &mut choosers).await?;
    }
}

/// A step of all sequences: those that go on choose their next token. Only what it can be chosen from is read back.
async fn step(session: &mut Session, choosers: &mut [(&mut Chooser, bool)]) -> Result<()> {
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
