//! Sequences under way: their key-value caches and where they stand.

use super::{Engine, Inner, cpu::CpuSession, gpu::GpuSession};
use crate::{Element, Error, Result};
use std::sync::Arc;

/// How much room a [`Session`] has.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Sequences that are decoded side by side.
    pub sequences: usize,
    /// Tokens that each may have; at most the model's context.
    pub capacity: usize,
    /// The type of cached keys and values on a GPU: [`Element::F32`], or [`Element::F16`] for half the memory, where the device has it.
    pub cache: Element,
}

/// More side by side would be a mistake.
const MOST_SEQUENCES: usize = 65_536;

/// One or more sequences, each of the tokens that were put into it.
pub struct Session {
    pub(super) model: Arc<Inner>,
    pub(super) state: State,
    pub(super) options: SessionOptions,
}

pub(super) enum State {
    Gpu(Box<GpuSession>),
    Cpu(CpuSession),
}

impl Session {
    pub(super) fn new(model: Arc<Inner>, options: SessionOptions) -> Result<Self> {
        let SessionOptions { sequences, capacity, cache } = options;
        let context = model.config.context;
        if sequences == 0 || capacity == 0 || sequences > MOST_SEQUENCES {
            let what = format!("{sequences} sequences of {capacity} tokens; 1 to {MOST_SEQUENCES} of 1 or more are possible");
            return Err(Error::Invalid { op: "session", what });
        }
        if capacity > context {
            return Err(Error::Context { needed: capacity, capacity: context });
        }
        let state = match &model.engine {
            Engine::Gpu(gpu) => State::Gpu(Box::new(GpuSession::new(gpu, sequences, capacity, cache)?)),
            Engine::Cpu(cpu) => State::Cpu(CpuSession::new(cpu, sequences, capacity)?),
        };
        Ok(Self { model, state, options })
    }

    /// What it was made with.
    pub fn options(&self) -> SessionOptions {
        self.options
    }

    /// Tokens in a sequence.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn len(&self, sequence: usize) -> usize {
        match &self.state {
            State::Gpu(session) => session.lengths[sequence],
            State::Cpu(session) => session.length(sequence),
        }
    }

    /// Is a sequence without tokens?
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn is_empty(&self, sequence: usize) -> bool {
        self.len(sequence) == 0
    }

    /// Forgets all but the first `tokens` of a sequence, so that another continuation can follow.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such sequence.
    pub fn truncate(&mut self, sequence: usize, tokens: usize) -> Result<()> {
        self.check_sequence(sequence)?;
        match &mut self.state {
            State::Gpu(session) => session.lengths[sequence] = session.lengths[sequence].min(tokens),
            State::Cpu(session) => session.truncate(sequence, tokens),
        }
        Ok(())
    }

    /// Appends tokens to a sequence; gives the logits after the last of them, `[vocab]`.
    ///
    /// # Errors
    /// [`Error::Context`] if there is no room, [`Error::Invalid`] for no tokens, tokens that are not in the vocabulary, or a sequence that does not
    /// exist. Nothing is appended then.
    pub async fn prefill(&mut self, sequence: usize, ids: &[u32]) -> Result<Vec<f32>> {
        self.check(sequence, ids)?;
        match (&mut self.state, &self.model.engine) {
            (State::Gpu(session), Engine::Gpu(model)) => session.prefill(model, sequence, ids).await,
            (State::Cpu(session), Engine::Cpu(model)) => session.prefill(model, sequence, ids),
            _ => unreachable!("a session is made by its model"),
        }
    }

    /// Appends tokens to a sequence; hands on the logits after each, `[rows, vocab]` for some rows at a time, in order.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub async fn prefill_all(&mut self, sequence: usize, ids: &[u32], mut rows: impl FnMut(Vec<f32>) + Send) -> Result<()> {
        self.check(sequence, ids)?;
        match (&mut self.state, &self.model.engine) {
            (State::Gpu(session), Engine::Gpu(model)) => session.all_logits(model, sequence, ids, &mut rows).await,
            (State::Cpu(session), Engine::Cpu(model)) => session.all_logits(model, sequence, ids, &mut rows),
            _ => unreachable!("a session is made by its model"),
        }
    }

    /// Appends one token to every sequence; gives their logits, `[sequences, vocab]`.
    ///
    /// # Errors
    /// [`Error::Context`] if a sequence has no room, [`Error::Invalid`] for a wrong number of tokens or tokens that are not in the vocabulary.
    pub async fn decode(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_step(tokens)?;
        match (&mut self.state, &self.model.engine) {
            (State::Gpu(session), Engine::Gpu(model)) => {
                session.write_tokens(tokens)?;
                session.step_all(model).await
            }
            (State::Cpu(session), Engine::Cpu(model)) => {
                let rows = tokens.iter().enumerate().map(|(sequence, &token)| session.prefill(model, sequence, &[token]));
                Ok(rows.collect::<Result<Vec<_>>>()?.concat())
            }
            _ => unreachable!("a session is made by its model"),
        }
    }

    /// [`Session::decode`] for the `k` largest logits of every sequence, as (id, logit), largest first.
    pub(super) async fn decode_top(&mut self, tokens: &[u32], k: usize) -> Result<Vec<Vec<(u32, f32)>>> {
        match (&mut self.state, &self.model.engine) {
            (State::Gpu(session), Engine::Gpu(model)) => {
                check_step(&self.options, &session.lengths, &self.model, tokens)?;
                session.write_tokens(tokens)?;
                session.step_top(model, k).await
            }
            _ => {
                let logits = self.decode(tokens).await?;
                Ok(logits.chunks(self.model.config.vocab).map(|row| crate::transformer::top_k_cpu(row, k)).collect())
            }
        }
    }

    /// Does every sequence have room for `tokens` more?
    pub(super) fn has_room(&self, tokens: usize) -> bool {
        (0..self.options.sequences).all(|sequence| self.len(sequence) + tokens <= self.options.capacity)
    }

    fn check_sequence(&self, sequence: usize) -> Result<()> {
        if sequence < self.options.sequences {
            return Ok(());
        }
        Err(Error::Invalid { op: "session", what: format!("sequence {sequence}; there are {}", self.options.sequences) })
    }

    pub(super) fn check(&self, sequence: usize, ids: &[u32]) -> Result<()> {
        self.check_sequence(sequence)?;
        if ids.is_empty() {
            return Err(Error::Invalid { op: "session", what: "no tokens: a text begins with BOS at least".into() });
        }
        self.model.check_tokens(ids)?;
        let needed = self.len(sequence) + ids.len();
        if needed > self.options.capacity {
            return Err(Error::Context { needed, capacity: self.options.capacity });
        }
        Ok(())
    }

    fn check_step(&self, tokens: &[u32]) -> Result<()> {
        let lengths: Vec<_> = (0..self.options.sequences).map(|sequence| self.len(sequence)).collect();
        check_step(&self.options, &lengths, &self.model, tokens)
    }
}

fn check_step(options: &SessionOptions, lengths: &[usize], model: &Inner, tokens: &[u32]) -> Result<()> {
    if tokens.len() != lengths.len() {
        return Err(Error::Invalid { op: "session", what: format!("{} tokens for {} sequences", tokens.len(), lengths.len()) });
    }
    model.check_tokens(tokens)?;
    match lengths.iter().max() {
        Some(&longest) if longest >= options.capacity => Err(Error::Context { needed: longest + 1, capacity: options.capacity }),
        _ => Ok(()),
    }
}
