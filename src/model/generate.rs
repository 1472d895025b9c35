//! A prompt's continuation, token by token.

use super::{Engine, Message, Model, Sampler, Sampling, Session, SessionOptions, TextStream, session::State};
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
    /// The text that it completes: often none, since a character may take several tokens. Special tokens have none, nor have all tokens of a
    /// model without a tokenizer.
    pub text: String,
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
    text: Option<TextStream>,
    prompt: Vec<u32>,
    generated: usize,
    last: u32,
    /// Greedy steps whose tokens are on their way.
    pending: VecDeque<Pending>,
    stop: Option<Stop>,
}

impl Model {
    /// Continues a text, which gets BOS as the tokenizer's own template and configuration say.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the model has none; else as [`Model::generate_ids`].
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation> {
        self.generate_ids(&self.encode_prompt(prompt)?, options)
    }

    /// The tokens of a text as [`Model::generate`] takes it. An empty text is BOS, whatever the tokenizer adds.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        let mut ids = self.tokenizer()?.encode(prompt)?;
        if ids.is_empty() {
            ids.extend(self.config().bos);
        }
        Ok(ids)
    }

    /// Continues a conversation with the assistant's turn, as the model's chat template writes it.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if it has none, or if it refuses the messages; else as [`Model::generate`].
    pub fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<Generation> {
        self.generate_ids(&self.tokenizer()?.chat(messages)?, options)
    }

    /// Continues several prompts side by side, every weight read once a step for all of them; gives each one's tokens. The n-th prompt draws its random
    /// numbers from seed + n.
    ///
    /// # Errors
    /// As [`Model::generate_ids`].
    pub async fn generate_batch(&self, prompts: &[Vec<u32>], options: &GenerateOptions) -> Result<Vec<Vec<u32>>> {
        options.sampling.check()?;
        let mut generated = vec![Vec::new(); prompts.len()];
        if prompts.is_empty() || options.max_tokens == 0 {
            return Ok(generated);
        }
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let capacity = self.capacity(longest, options)?;
        let mut session = self.session(SessionOptions { sequences: prompts.len(), capacity, cache: options.cache })?;
        let (mut samplers, mut last) = (Vec::new(), Vec::new());
        for (n, prompt) in prompts.iter().enumerate() {
            let seed = options.sampling.seed.wrapping_add(n as u64);
            let mut sampler = Sampler::new(Sampling { seed, ..options.sampling })?;
            last.push(sampler.sample_logits(&session.prefill(n, prompt).await?)?);
            samplers.push(sampler);
        }
        let mut done = vec![false; prompts.len()];
        loop {
            for (n, tokens) in generated.iter_mut().enumerate() {
                if !done[n] {
                    tokens.push(last[n]);
                    let ended = !options.ignore_eos && self.inner.ends_text(last[n]);
                    done[n] = ended || tokens.len() == options.max_tokens || session.len(n) == capacity;
                }
                if done[n] {
                    // Its steps go on, at the beginning, and nobody looks.
                    session.truncate(n, 0)?;
                }
            }
            if done.iter().all(|&done| done) {
                return Ok(generated);
            }
            let candidates = session.candidates(&last, options.sampling).await?;
            for (n, candidates) in candidates.into_iter().enumerate().filter(|&(n, _)| !done[n]) {
                last[n] = candidates.sample(&mut samplers[n])?;
            }
        }
    }

    /// Room for a prompt and what may follow it; the last token generated is not put in.
    fn capacity(&self, prompt: usize, options: &GenerateOptions) -> Result<usize> {
        let context = self.config().context;
        if prompt > context {
            return Err(Error::Context { needed: prompt, capacity: context });
        }
        Ok(prompt.saturating_add(options.max_tokens.saturating_sub(1)).clamp(1, context))
    }

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
        let capacity = self.capacity(prompt.len(), options)?;
        let session = self.session(SessionOptions { sequences: 1, capacity, cache: options.cache })?;
        let run = Run {
            session,
            options: *options,
            sampler,
            text: self.inner.tokenizer.as_ref().map(|tokenizer| tokenizer.stream()),
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
        if self.session.model.ends_text(id) && !self.options.ignore_eos {
            self.stop = Some(Stop::EndOfText);
        } else if self.generated == self.options.max_tokens {
            self.stop = Some(Stop::MaxTokens);
        } else if self.pending.is_empty() && !self.session.has_room(1) {
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
        Ok(text)
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
        let candidates = self.session.candidates(&[self.last], sampling).await?.pop();
        candidates.unwrap_or(Candidates::All(Vec::new())).sample(&mut self.sampler)
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

/// Among which logits the next token is chosen.
enum Candidates {
    /// The largest, as (id, logit), largest first.
    Top(Vec<(u32, f32)>),
    /// All, by id.
    All(Vec<f32>),
}

impl Candidates {
    fn sample(&self, sampler: &mut Sampler) -> Result<u32> {
        match self {
            Self::Top(logits) => sampler.sample(logits),
            Self::All(logits) => sampler.sample_logits(logits),
        }
    }
}

impl Session {
    /// A step of all sequences. Only what `sampling` can choose from comes back, where it says how many that are.
    async fn candidates(&mut self, tokens: &[u32], sampling: Sampling) -> Result<Vec<Candidates>> {
        match if sampling.is_greedy() { 1 } else { sampling.top_k } {
            k @ 1..=TopK::MAX => {
                // A vocabulary may have less than k; a NaN has no id, and stays for the sampler to find.
                let named = |mut row: Vec<(u32, f32)>| {
                    row.retain(|&(id, logit)| id != TopK::NONE || logit.is_nan());
                    Candidates::Top(row)
                };
                Ok(self.decode_top(tokens, k).await?.into_iter().map(named).collect())
            }
            _ => {
                let logits = self.decode(tokens).await?;
                Ok(logits.chunks(self.model.config.vocab).map(|row| Candidates::All(row.to_vec())).collect())
            }
        }
    }
}
