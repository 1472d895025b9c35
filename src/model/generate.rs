//! A prompt's continuation, token by token.

use super::{
    engine::{Pending, SessionOptions, TokenLogit},
    sampling::{Sampler, Sampling},
    session::Session,
    tokenizer::stream::TextStream,
};
use crate::{
    element::Element,
    error::{Error, Result},
    ops::transformer::TopK,
};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    task::{self, Poll},
};

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

impl GenerateOptions {
    /// Room for prompts of up to `prompt` tokens and what may follow in a model's `context`. The last token generated is not appended.
    pub(super) fn room(&self, sequences: usize, prompt: usize, context: usize) -> Result<SessionOptions> {
        if prompt > context {
            return Err(Error::Context { needed: prompt, capacity: context });
        }
        let capacity = prompt.saturating_add(self.max_tokens.saturating_sub(1)).clamp(1, context);
        Ok(SessionOptions { sequences, capacity, cache: self.cache })
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

/// A continuation in progress: an iterator that blocks, and a [`Stream`].
pub struct Generation {
    /// None while `next` has it.
    run: Option<Box<Run>>,
    next: Option<Next>,
    stop: Option<Stop>,
}

type Next = Pin<Box<dyn Future<Output = (Box<Run>, Result<Option<Token>>)> + Send>>;

/// The state of a generation.
struct Run {
    session: Session,
    options: GenerateOptions,
    sampler: Sampler,
    text: Option<TextStream>,
    /// Tokens that end the text.
    ends: Vec<u32>,
    prompt: Vec<u32>,
    generated: usize,
    last: u32,
    /// Greedy steps that are submitted and not yet awaited.
    pending: VecDeque<Pending<Vec<u32>>>,
    stop: Option<Stop>,
}

impl Generation {
    /// Continues a prompt in an empty session of one sequence, until one of the tokens `ends`.
    pub(super) fn new(
        session: Session,
        prompt: &[u32],
        text: Option<TextStream>,
        ends: Vec<u32>,
        options: GenerateOptions,
    ) -> Result<Self> {
        session.check(0, prompt)?;
        let run = Run {
            session,
            options,
            sampler: Sampler::new(options.sampling)?,
            text,
            ends,
            prompt: prompt.to_vec(),
            generated: 0,
            last: 0,
            pending: VecDeque::new(),
            stop: (options.max_tokens == 0).then_some(Stop::MaxTokens),
        };
        Ok(Self { run: Some(Box::new(run)), next: None, stop: None })
    }

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
        if self.ends.contains(&id) {
            self.stop = Some(Stop::EndOfText);
        } else if self.generated == self.options.max_tokens {
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
        Ok(text)
    }

    async fn first(&mut self) -> Result<u32> {
        let prompt = std::mem::take(&mut self.prompt);
        let logits = self.session.prefill(0, &prompt).await?;
        self.sampler.sample_logits(&logits)
    }

    async fn following(&mut self) -> Result<u32> {
        let sampling = self.options.sampling;
        if sampling.is_greedy() {
            return self.greedy().await;
        }
        candidates(&mut self.session, &[self.last], sampling).await?.sample(0, &mut self.sampler)
    }

    /// Steps are submitted ahead of the one that is awaited: a token need not come back before the next step begins.
    async fn greedy(&mut self) -> Result<u32> {
        let next = match self.pending.pop_front() {
            Some(next) => next,
            None => self.session.submit_greedy(Some(&[self.last]))?,
        };
        let ahead = self.session.steps_ahead().min(self.options.max_tokens - self.generated - 1);
        while self.pending.len() < ahead && self.session.has_room() {
            self.pending.push_back(self.session.submit_greedy(None)?);
        }
        match next.await?.first() {
            Some(&id) if id != TopK::NONE => Ok(id),
            _ => Err(Error::Invalid { op: "generate", what: "the logits are not finite".into() }),
        }
    }
}

/// Continues prompts side by side in an empty session, each until one of the tokens `ends`; gives each one's tokens.
pub(super) async fn batch(mut session: Session, prompts: &[Vec<u32>], ends: &[u32], options: &GenerateOptions) -> Result<Vec<Vec<u32>>> {
    let capacity = session.options().capacity;
    let mut generated = vec![Vec::new(); prompts.len()];
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
        let candidates = candidates(&mut session, &last, options.sampling).await?;
        for n in (0..prompts.len()).filter(|&n| !done[n]) {
            last[n] = candidates.sample(n, &mut samplers[n])?;
        }
    }
}

/// Among which logits the next token of every sequence is chosen.
enum Candidates {
    /// The largest of each, largest first.
    Top(Vec<Vec<TokenLogit>>),
    /// All, `[sequences, vocab]`.
    All { logits: Vec<f32>, vocab: usize },
}

/// A step of all sequences. Only what `sampling` can choose from is read back, where it says how many that are.
async fn candidates(session: &mut Session, tokens: &[u32], sampling: Sampling) -> Result<Candidates> {
    match if sampling.is_greedy() { 1 } else { sampling.top_k } {
        k @ 1..=TopK::MAX => session.decode_top(tokens, k).await.map(Candidates::Top),
        _ => {
            let logits = session.decode(tokens).await?;
            Ok(Candidates::All { vocab: logits.len() / tokens.len(), logits })
        }
    }
}

impl Candidates {
    /// The next token of a sequence.
    fn sample(&self, sequence: usize, sampler: &mut Sampler) -> Result<u32> {
        match self {
            // A vocabulary may have fewer than k; a NaN has no id, and stays for the sampler to find.
            Self::Top(rows) => {
                let named = |&(id, logit): &TokenLogit| id != TopK::NONE || logit.is_nan();
                sampler.sample(&rows[sequence].iter().copied().filter(named).collect::<Vec<_>>())
            }
            Self::All { logits, vocab } => sampler.sample_logits(&logits[sequence * vocab..][..*vocab]),
        }
    }
}
