//! What computes a model, as sessions see it: the GPU or the CPU.

use crate::{
    element::Element,
    error::{Error, Result},
    formats::ModelConfig,
    gpu::{context::Context, recording::Recording, tensor::Tensor},
    memory::Footprint,
    ops::transformer::{HostKvCache, Penalties, SampleOptions, penalize_cpu, sample_cpu},
};
use std::{collections::BTreeMap, ops::Range, pin::Pin, sync::Arc};

/// A result of work that is submitted already.
pub(super) type Pending<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// How an engine chooses the next token of every sequence.
pub(super) struct Choice {
    /// By which options, and from which seed. A token's random numbers are those of the position of
    /// the token before it.
    pub draws: Vec<(SampleOptions, u64)>,
    /// What changes the logits before: as many.
    pub changes: Vec<Change>,
}

/// What [`penalize`](crate::transformer::penalize()) takes of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub penalties: Penalties,
    /// What is added to logits, by token.
    pub bias: BTreeMap<u32, f32>,
    /// `[vocab]`, without the last token: a step counts the last of its own. None where nobody asks
    /// for them, or where the engine was told them when the sequence began, and has counted since.
    pub counts: Option<Vec<u32>>,
}

impl Change {
    /// That which changes nothing.
    pub const NONE: Self = Self { penalties: Penalties::NONE, bias: BTreeMap::new(), counts: None };

    /// Does it change nothing?
    pub fn is_none(&self) -> bool {
        self.penalties == Penalties::NONE && self.bias.is_empty()
    }

    /// What is added to the logit of each token of a vocabulary of so many.
    pub fn biases(&self, vocab: usize) -> Vec<f32> {
        let mut biases = vec![0.0; vocab];
        self.bias.iter().for_each(|(&id, &bias)| biases[id as usize] = bias);
        biases
    }
}

impl Choice {
    /// By these options and seeds, from logits as they are.
    pub fn new(draws: Vec<(SampleOptions, u64)>) -> Self {
        let changes = vec![Change::NONE; draws.len()];
        Self { draws, changes }
    }

    /// Takes the counts of the choice before it, where it has none of its own.
    pub fn keep_counts(&mut self, before: Self) {
        let pairs = self.changes.iter_mut().zip(before.changes);
        pairs.for_each(|(change, before)| change.counts = change.counts.take().or(before.counts));
    }

    /// The next token of a sequence, on the CPU: from the `logits` `[vocab]` after `token`, which
    /// is at `position`.
    pub fn next(
        &mut self,
        sequence: usize,
        token: u32,
        position: usize,
        logits: &mut [f32],
    ) -> Result<u32> {
        let (change, vocab) = (&mut self.changes[sequence], logits.len());
        if !change.is_none() {
            let biases = change.biases(vocab);
            let counts = change.counts.get_or_insert_with(|| vec![0; vocab]);
            penalize_cpu(logits, token, counts, &biases, &change.penalties)?;
        }
        let (options, seed) = &self.draws[sequence];
        sample_cpu(logits, *seed, position as u32, options)
    }
}

/// How much room a [`Session`](super::Session) has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Sequences that are decoded side by side.
    pub sequences: usize,
    /// Tokens that each may have; at most the model's context.
    pub capacity: usize,
    /// The type of cached keys and values: [`Element::F32`], or [`Element::F16`] for half the
    /// memory and traffic. Unless it is set, the latter where a GPU has it, and the former on the
    /// CPU.
    pub cache: Option<Element>,
}

impl SessionOptions {
    /// So many sequences of so many tokens.
    pub fn new(sequences: usize, capacity: usize) -> Self {
        Self { sequences, capacity, cache: None }
    }

    /// Sets [`SessionOptions::cache`].
    #[must_use]
    pub fn cache(self, cache: impl Into<Option<Element>>) -> Self {
        Self { cache: cache.into(), ..self }
    }
}

/// What [`Offload`](super::Offload) has led to: [`Model::offloaded`](super::Model::offloaded).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offloaded {
    /// Layers whose matrices are in host memory.
    pub layers: usize,
    /// Their bytes: what is copied to the GPU in every pass, over a prompt's piece or for a token
    /// of each sequence.
    pub bytes: u64,
}

/// A run of a model's layers on a device, and what it takes there:
/// [`ModelFiles::parts`](super::ModelFiles::parts), [`Model::parts`](super::Model::parts).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelPart {
    /// The device.
    pub context: Context,
    /// Its layers. The first part has the embedding too, and the last the head: where these are one
    /// matrix, both have it.
    pub layers: Range<usize>,
    /// The memory.
    pub footprint: Footprint,
}

/// A step for the next tokens before anyone said how they are chosen.
pub(super) fn unchosen() -> Error {
    Error::Invalid { op: "session", what: "no choice of tokens was set".into() }
}

/// A model's weights where they are computed with.
pub(super) trait Engine: Send + Sync {
    fn config(&self) -> &ModelConfig;

    /// The devices, by the order of their layers; none for the CPU.
    fn contexts(&self) -> Vec<&Context>;

    /// Empty sequences. The options have been checked.
    fn session(self: Arc<Self>, options: SessionOptions) -> Result<Box<dyn EngineSession>>;

    /// The GPU memory that such a session will need, of each device. The options have been checked.
    fn parts(&self, options: SessionOptions) -> Result<Vec<ModelPart>>;

    /// What of it stays in host memory, beside a GPU.
    fn offloaded(&self) -> Offloaded {
        Offloaded::default()
    }

    /// Compiles the kernels of prompts and steps of such a session. The options have been checked.
    fn warm_up(&self, options: SessionOptions) -> Result<Pending<()>>;
}

/// Sequences and their key-value caches, with the engine that fills them. The caller has checked
/// that sequences exist, that tokens are in the vocabulary and that there is room for them. After
/// an error, sequences are of any length up to that with all tokens appended.
pub(super) trait EngineSession: Send + Sync {
    /// Tokens in a sequence. Panics if there is no such sequence.
    fn len(&self, sequence: usize) -> usize;

    /// Forgets all but the first `tokens` of a sequence.
    fn truncate(&mut self, sequence: usize, tokens: usize);

    /// Another session with the same sequences.
    fn fork(&self) -> Result<Box<dyn EngineSession>>;

    /// Keys and values in host memory, by layer and sequence.
    fn read(&self) -> Result<Pending<Vec<Vec<HostKvCache>>>>;

    /// Overwrites all sequences with what was read of a session; there is room for it.
    fn write(&mut self, layers: Vec<Vec<HostKvCache>>) -> Result<()>;

    /// How many tokens are computed together, at most, where a sequence gets more than one.
    fn batch(&self) -> usize;

    /// How many pieces of a prompt are best submitted beyond the one that is awaited.
    fn pieces_ahead(&self) -> usize {
        1
    }

    /// Appends as many tokens to each of some sequences, none of which is there twice: `tokens`
    /// `[sequences, run]`, one each or at most [`EngineSession::batch`] in all. Gives, when they
    /// are computed, the logits after the last `rows` tokens of each, `[sequences, rows, vocab]`.
    fn extend(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Pending<Vec<f32>>>;

    /// As [`EngineSession::extend`], for the states of the last `rows` tokens of each, after the
    /// final norm: `[sequences, rows, hidden]`.
    fn states(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Pending<Vec<f32>>>;

    /// Says how [`EngineSession::step_next`] chooses from now on.
    fn choose_by(&mut self, choice: Choice) -> Result<()>;

    /// As [`EngineSession::extend`], of those tokens, or else of the one of each sequence that the
    /// step before this one gives, which had the same sequences and, unless
    /// [`EngineSession::steps_ahead`] is 0, need not have been awaited. Gives the tokens that are
    /// chosen after the last `rows` of each, `[sequences, rows]`,
    /// [`TopK::NONE`](crate::ops::transformer::TopK::NONE) where the logits are not finite. Where
    /// something changes the logits, that is one.
    fn step_next(
        &mut self,
        sequences: &[usize],
        tokens: Option<&[u32]>,
        rows: usize,
    ) -> Result<Pending<Vec<u32>>>;

    /// How many such steps are best submitted beyond the one that is awaited.
    fn steps_ahead(&self) -> usize;

    /// The output of a layer for hidden states `[tokens, hidden]` at the beginning of the first
    /// sequence, which must be empty and stays so.
    fn layer_output(&mut self, layer: usize, hidden: &[f32]) -> Result<Pending<Vec<f32>>>;

    /// The dispatches that append tokens to the first sequence, and the tensor that gets the logits
    /// after the last; nothing is run.
    fn record(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)>;

    /// The dispatches of a greedy decoding step of all sequences when each has had `past` tokens;
    /// nothing is run. Sequences must be empty.
    fn record_step(&mut self, past: usize) -> Result<Recording>;
}
