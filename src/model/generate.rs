//! A prompt's continuation, token by token.

use super::{Engine, Model, Sampler, Sampling, Session, SessionOptions, session::State};
use crate::{Element, Error, Result, transformer::TopK};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    task::{self, Poll},
};

/// Greedy steps that are submitted ahead of the one whose token is awaited: a token need not come back before the next step begins.
const AHEAD: usize = 3;

/// How a text is continued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampling: Sampling,
    /// Go on after an end-of-text token.
    pub ignore_eos: bool,
    /// The type of cached keys and values on a GPU; see [`SessionOptions::cache`].
    pub cache: Element,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { max_tokens: 256, sampling: Sampling::GREEDY, ignore_eos: false, cache: Element::F32 }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// With an end-of-text token.
    EndOfText,
    /// After [`GenerateOptions::max_tokens`].
    MaxTokens,
    /// The model's context is full.
    Context,
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
}

/// A continuation under way: an iterator that blocks, and a [`Stream`].
pub struct Generation {
    /// None while `next` has it.
    run: Option<Box<Run>>,
    next: Option<Next>,
    stop: Option<Stop>,
}

type Next = Pin<Box<dyn Future<Output = (Box<Run>, Result<Option<Token>>)> + Send>>;
type Pending = Pin<Box<dyn Future<Output = Result<Vec<u32>>> + Send>>;

/// The state of a generation.
struct Run {
    session: Session,
    options: GenerateOptions,
    sampler: Sampler,
    prompt: Vec<u32>,
    generated: usize,
    last: u32,
    /// Greedy steps whose tokens are on their way.
    pending: VecDeque<Pending>,
    stop: Option<Stop>,
}

impl Model {
    /// Continues a prompt of token ids, which are taken as they are.
    ///
    /// # Errors
    /// [`Error::Context`] if the prompt does not fit into the model's context; [`Error::Invalid`] for no tokens, tokens that are not in the
    /// vocabulary, or options outside their domain.
    pub fn generate_ids(&self, prompt: &[u32], options: &GenerateOptions) -> Result<Generation> {
        let sampler = Sampler::new(options.sampling)?;
        self.inner.check_tokens(prompt)?;
        if prompt.is_empty() {
            return Err(Error::Invalid { op: "generate", what: "no tokens: a text begins with BOS at least".into() });
        }
        let context = self.config().context;
        if prompt.len() > context {
            return Err(Error::Context { needed: prompt.len(), capacity: context });
        }
        // The last token generated is not put in.
        let capacity = prompt.len().saturating_add(options.max_tokens.saturating_sub(1)).min(context);
        let session = self.session(SessionOptions { sequences: 1, capacity, cache: options.cache })?;
        let run = Run {
            session,
            options: *options,
            sampler,
            prompt: prompt.to_vec(),
            generated: 0,
            last: 0,
            pending: VecDeque::new(),
            stop: (options.max_tokens == 0).then_some(Stop::MaxTokens),
        };
        Ok(Generation { run: Some(Box::new(run)), next: None, stop: None })
    }
}

impl Generation {
    /// Why it ended; none while it has not.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Token>>> {
        let next = match (&mut self.next, self.run.take()) {
            (Some(next), _) => next,
            (None, Some(run)) => self.next.insert(Box::pin(run.advance())),
            (None, None) => return Poll::Ready(None),
        };
        let (run, token) = task::ready!(next.as_mut().poll(cx));
        self.next = None;
        self.stop = run.stop;
        // After an error nothing follows.
        if token.is_ok() {
            self.run = Some(run);
        }
        Poll::Ready(token.transpose())
    }
}

impl Iterator for Generation {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Result<Token>> {
        pollster::block_on(poll_fn(|cx| self.poll(cx)))
    }
}

impl Stream for Generation {
    type Item = Result<Token>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(cx)
    }
}

impl Run {
    async fn advance(mut self: Box<Self>) -> (Box<Self>, Result<Option<Token>>) {
        let token = match self.stop {
            Some(_) => Ok(None),
            None => self.token().await.map(Some),
        };
        (self, token)
    }

    async fn token(&mut self) -> Result<Token> {
        let id = match self.generated {
            0 => self.first().await?,
            _ => self.following().await?,
        };
        self.last = id;
        self.generated += 1;
        if self.session.model.config.eos.contains(&id) && !self.options.ignore_eos {
            self.stop = Some(Stop::EndOfText);
        } else if self.generated == self.options.max_tokens {
            self.stop = Some(Stop::MaxTokens);
        } else if self.pending.is_empty() && !self.session.has_room(1) {
            self.stop = Some(Stop::Context);
        }
        Ok(Token { id })
    }

    async fn first(&mut self) -> Result<u32> {
        let prompt = std::mem::take(&mut self.prompt);
        let logits = self.session.prefill(0, &prompt).await?;
        self.sampler.sample_logits(&logits)
    }

    async fn following(&mut self) -> Result<u32> {
        let sampling = self.options.sampling;
        if sampling.is_greedy() && matches!(self.session.state, State::Gpu(_)) {
            return self.greedy_on_gpu().await;
        }
        match if sampling.is_greedy() { 1 } else { sampling.top_k } {
            k @ 1..=TopK::MAX => {
                let candidates = self.session.decode_top(&[self.last], k).await?;
                let named: Vec<_> = candidates.concat().into_iter().filter(|&(id, logit)| id != TopK::NONE || logit.is_nan()).collect();
                self.sampler.sample(&named)
            }
            _ => {
                let logits = self.session.decode(&[self.last]).await?;
                self.sampler.sample_logits(&logits)
            }
        }
    }

    async fn greedy_on_gpu(&mut self) -> Result<u32> {
        let Session { model, state, options } = &mut self.session;
        let (State::Gpu(session), Engine::Gpu(gpu)) = (state, &model.engine) else { unreachable!("the caller has looked") };
        if self.pending.is_empty() {
            session.write_tokens(&[self.last])?;
        }
        let left = self.options.max_tokens - self.generated;
        while self.pending.len() < left.min(1 + AHEAD) && session.lengths[0] < options.capacity {
            self.pending.push_back(Box::pin(session.step_greedy(gpu)?));
        }
        let Some(token) = self.pending.pop_front() else {
            return Err(Error::Context { needed: options.capacity + 1, capacity: options.capacity });
        };
        match token.await?.first() {
            Some(&id) if id != TopK::NONE => Ok(id),
            _ => Err(Error::Invalid { op: "generate", what: "the logits are not finite".into() }),
        }
    }
}
