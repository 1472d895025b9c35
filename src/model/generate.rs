//! A prompt's continuation, token by token.

use super::{
    choice::Chooser,
    engine::{Pending, TokenLogit},
    options::GenerateOptions,
    session::Session,
    stop::StopStrings,
    tokenizer::stream::TextStream,
    worker::{self, Work, Workers},
};
use crate::{
    error::{Error, Result},
    ops::transformer::TopK,
};
use futures_core::Stream;
use futures_intrusive::channel::shared::channel;
use std::{
    borrow::{Borrow, BorrowMut},
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
};

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// With an end-of-text token.
    EndOfText,
    /// At one of [`GenerateOptions::stop`].
    StopString,
    /// After [`GenerateOptions::max_tokens`].
    MaxTokens,
    /// The model's context is full.
    Context,
}

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

/// A continuation: a [`Stream`] of tokens, or by a `for` loop (which blocks) an iterator. From the first that is asked for, they are computed on a thread
/// of its own, a few tokens ahead of who takes them. Dropped, it ends within one token.
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
    Running(Tokens, #[expect(dead_code, reason = "kept while it runs")] Work),
    Ended,
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
    text: Option<TextStream>,
    stops: StopStrings,
    /// Tokens that end the text.
    ends: Vec<u32>,
    prompt: Vec<u32>,
    generated: usize,
    /// Greedy steps that are submitted and not yet awaited.
    pending: VecDeque<Pending<Vec<u32>>>,
    stop: Option<Stop>,
}

impl Generation {
    /// Continues a prompt in an empty session of one sequence, until one of the tokens `ends`.
    pub(super) fn new(
        workers: &Arc<Workers>,
        session: Session,
        prompt: &[u32],
        text: Option<TextStream>,
        ends: Vec<u32>,
        options: &GenerateOptions,
    ) -> Result<Self> {
        session.check(0, prompt)?;
        let chooser = Chooser::new(options, 0, prompt)?;
        if options.max_tokens == 0 {
            return Ok(Self { state: State::Ended, stop: Some(Stop::MaxTokens) });
        }
        let (max_tokens, stops) = (options.max_tokens, StopStrings::new(&options.stop));
        let (prompt, pending) = (prompt.to_vec(), VecDeque::new());
        let run = Run { session, max_tokens, chooser, text, stops, ends, prompt, generated: 0, pending, stop: None };
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
}

impl Stream for Generation {
    type Item = Result<Token>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        self.state = match std::mem::replace(&mut self.state, State::Ended) {
            State::New(run, workers) => match run.start(&workers) {
                Ok((tokens, work)) => State::Running(tokens, work),
                Err(error) => return Poll::Ready(Some(Err(error))),
            },
            state => state,
        };
        let State::Running(tokens, _) = &mut self.state else { return Poll::Ready(None) };
        let token = match task::ready!(tokens.as_mut().poll_next(cx)) {
            Some(message) => message.map(|(token, stop)| {
                self.stop = stop;
                token
            }),
            None => Err(worker::stopped()),
        };
        // After an error nothing follows.
        if token.is_err() || self.stop.is_some() {
            self.state = State::Ended;
        }
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
    fn start(mut self: Box<Self>, workers: &Arc<Workers>) -> Result<(Tokens, Work)> {
        let (sender, receiver) = channel(AHEAD);
        let work = workers.spawn(async move {
            loop {
                let message = self.token().await.map(|token| (token, self.stop));
                let last = message.is_err() || self.stop.is_some();
                // It fails where nobody listens any more.
                if sender.send(message).await.is_err() || last {
                    return;
                }
            }
        })?;
        Ok((Box::pin(receiver.into_stream()), work))
    }

    async fn token(&mut self) -> Result<Token> {
        let id = match self.generated {
            0 => self.first().await?,
            _ => self.following().await?,
        };
        self.generated += 1;
        if self.ends.contains(&id) {
            self.stop = Some(Stop::EndOfText);
        } else if self.generated == self.max_tokens {
            self.stop = Some(Stop::MaxTokens);
        } else if self.pending.is_empty() && !self.session.has_room() {
            self.stop = Some(Stop::Context);
        }
        Ok(Token { id, text: self.text(id)? })
    }

    fn text(&mut self, id: u32) -> Result<String> {
        let Some(stream) = &mut self.text else { return Ok(String::new()) };
        // An embedding may have more rows than there are tokens.
        let mut text = stream.push(id).unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.into());
        if self.stop.is_some() {
            text += &stream.finish()?;
        }
        let (mut settled, found) = self.stops.push(&text);
        if found {
            self.stop = Some(Stop::StopString);
        } else if self.stop.is_some() {
            settled += &self.stops.finish();
        }
        Ok(settled)
    }

    async fn first(&mut self) -> Result<u32> {
        let prompt = std::mem::take(&mut self.prompt);
        let logits = self.session.prefill(0, &prompt).await?;
        self.chooser.of_logits(logits)
    }

    async fn following(&mut self) -> Result<u32> {
        if self.chooser.wanted() == Some(1) {
            return self.greedy().await;
        }
        let chooser = std::slice::from_mut(&mut self.chooser);
        Ok(step(&mut self.session, chooser).await?[0])
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

/// Continues prompts side by side in an empty session, each until one of the tokens `ends`; gives each one's tokens.
pub(super) async fn batch(mut session: Session, prompts: &[Vec<u32>], ends: &[u32], options: &GenerateOptions) -> Result<Vec<Vec<u32>>> {
    let capacity = session.options().capacity;
    let mut generated = vec![Vec::new(); prompts.len()];
    let (mut choosers, mut last) = (Vec::new(), Vec::new());
    for (n, prompt) in prompts.iter().enumerate() {
        let mut chooser = Chooser::new(options, n as u64, prompt)?;
        last.push(chooser.of_logits(session.prefill(n, prompt).await?)?);
        choosers.push(chooser);
    }
    let mut done = vec![false; prompts.len()];
    loop {
        for (n, tokens) in generated.iter_mut().enumerate() {
            if !done[n] {
                tokens.push(last[n]);
                done[n] = ends.contains(&last[n]) || tokens.len() == options.max_tokens || session.len(n) == capacity;
            }
            if done[n] {
                // A finished sequence is still stepped with the batch, its output ignored; emptied, it never runs out of room.
                session.truncate(n, 0)?;
            }
        }
        if done.iter().all(|&done| done) {
            return Ok(generated);
        }
        worker::yield_now().await;
        last = step(&mut session, &mut choosers).await?;
    }
}

/// A step of all sequences: the next token of each. Only what they can be chosen from is read back.
async fn step(session: &mut Session, choosers: &mut [Chooser]) -> Result<Vec<u32>> {
    let tokens: Vec<u32> = choosers.iter().map(Chooser::last).collect();
    // Sequences of a batch have the same options.
    match choosers.first().and_then(Chooser::wanted) {
        Some(k) => {
            let top: Vec<Vec<TokenLogit>> = session.decode_top(&tokens, k).await?;
            choosers.iter_mut().zip(top).map(|(chooser, top)| chooser.of_top(top)).collect()
        }
        None => {
            let logits = session.decode(&tokens).await?;
            let rows = logits.chunks(logits.len() / tokens.len());
            choosers.iter_mut().zip(rows).map(|(chooser, row)| chooser.of_logits(row.to_vec())).collect()
        }
    }
}
