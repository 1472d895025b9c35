//! What computes a model, as sessions see it: the GPU or the CPU.

use crate::{
    element::Element,
    error::Result,
    formats::ModelConfig,
    gpu::{context::Context, recording::Recording, tensor::Tensor},
    ops::transformer::HostKvCache,
};
use std::{pin::Pin, sync::Arc};

/// A result of work that is submitted already.
pub(super) type Pending<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A token and its logit.
pub(super) type TokenLogit = (u32, f32);

/// How much room a [`Session`](super::Session) has.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Sequences that are decoded side by side.
    pub sequences: usize,
    /// Tokens that each may have; at most the model's context.
    pub capacity: usize,
    /// The type of cached keys and values on a GPU: [`Element::F32`], or [`Element::F16`] for half the memory, where the device has it.
    pub cache: Element,
}

impl SessionOptions {
    /// So many sequences of so many tokens.
    pub fn new(sequences: usize, capacity: usize) -> Self {
        Self { sequences, capacity, cache: Element::F32 }
    }

    /// Sets [`SessionOptions::cache`].
    #[must_use]
    pub fn cache(self, cache: Element) -> Self {
        Self { cache, ..self }
    }
}

/// A model's weights where they are computed with.
pub(super) trait Engine: Send + Sync {
    fn config(&self) -> &ModelConfig;

    /// The device; none for the CPU.
    fn context(&self) -> Option<&Context>;

    /// Empty sequences. The options have been checked.
    fn session(self: Arc<Self>, options: SessionOptions) -> Result<Box<dyn EngineSession>>;
}

/// Sequences and their key-value caches, with the engine that fills them. The caller has checked that sequences exist, that tokens are in the
/// vocabulary and that there is room for them. After an error, sequences are of any length up to that with all tokens appended.
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

    /// How many tokens of a prompt are computed together, at most.
    fn batch(&self) -> usize;

    /// Appends at most [`EngineSession::batch`] tokens to a sequence; gives, when they are computed, the logits after the last `rows` of them,
    /// `[rows, vocab]`.
    fn extend(&mut self, sequence: usize, ids: &[u32], rows: usize) -> Result<Pending<Vec<f32>>>;

    /// Appends one token to every sequence; gives their logits, `[sequences, vocab]`.
    fn step(&mut self, tokens: &[u32]) -> Result<Pending<Vec<f32>>>;

    /// Appends one token to every sequence; gives the `k` largest logits of each, largest first.
    fn step_top(&mut self, tokens: &[u32], k: usize) -> Result<Pending<Vec<Vec<TokenLogit>>>>;

    /// Appends one token to every sequence: those given, or else those that the greedy step before this one gives, which need not have been
    /// awaited. Gives the most likely next token of each, [`TopK::NONE`](crate::ops::transformer::TopK::NONE) where a logit is NaN.
    fn step_greedy(&mut self, tokens: Option<&[u32]>) -> Result<Pending<Vec<u32>>>;

    /// How many greedy steps are best submitted beyond the one that is awaited.
    fn steps_ahead(&self) -> usize;

    /// The output of a layer for hidden states `[tokens, hidden]` at the beginning of the first sequence, which must be empty and stays so.
    fn layer_output(&mut self, layer: usize, hidden: &[f32]) -> Result<Pending<Vec<f32>>>;

    /// The dispatches that append tokens to the first sequence, and the tensor that gets the logits after the last; nothing is run.
    fn record(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)>;

    /// The dispatches of a greedy decoding step of all sequences when each has had `past` tokens; nothing is run. Sequences must be empty.
    fn record_step(&self, past: usize) -> Result<Recording>;
}
