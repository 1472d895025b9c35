//! What computes a model, as sessions see it: the GPU or the CPU.

use super::sampling_plan::SamplingPlan;
use crate::{
    element::Element,
    error::{Error, Result},
    formats::ModelConfig,
    gpu::{context::Context, recording::Recording, tensor::Tensor},
    limits::sessions::MOST_SEQUENCES,
    memory::Footprint,
    ops::transformer::HostKvCache,
};
use std::{ops::Range, pin::Pin, sync::Arc};

/// A result of work that is submitted already.
pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Size of a [`Session`](crate::model::Session).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    pub(crate) sequences: usize,
    pub(crate) capacity: usize,
    pub(crate) kv_type: Option<Element>,
}

impl SessionOptions {
    /// Returns options for `sequences` sequences that are decoded side by side, of up to `capacity`
    /// tokens each. The capacity is at most the model's context.
    pub fn new(sequences: usize, capacity: usize) -> Self {
        Self { sequences, capacity, kv_type: None }
    }

    /// Sets the type of the KV cache: [`Element::F32`], or [`Element::F16`] for half the memory and
    /// traffic. `None` is f16 on GPUs that support it and f32 elsewhere.
    #[must_use]
    pub fn kv_type(self, kv_type: impl Into<Option<Element>>) -> Self {
        Self { kv_type: kv_type.into(), ..self }
    }

    /// Returns the number of sequences.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Returns the number of tokens that each sequence may have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the type of the KV cache, which the options of a
    /// [`Session`](crate::model::Session) have.
    pub fn get_kv_type(&self) -> Option<Element> {
        self.kv_type
    }

    /// Checks the options against a model, and sets the type of its KV cache if it is not set.
    ///
    /// # Errors
    /// [`Error::Invalid`] for numbers or types out of range, [`Error::Context`] for a capacity
    /// beyond the model's context.
    pub(crate) fn checked(self, engine: &dyn Engine) -> Result<Self> {
        let Self { sequences, capacity, .. } = self;
        let context = engine.config().context;
        if sequences == 0 || capacity == 0 || sequences > MOST_SEQUENCES {
            let what = format!(
                "{sequences} sequences of {capacity} tokens; 1 to {MOST_SEQUENCES} of 1 or more are possible"
            );
            return Err(Error::Invalid { op: "session", what });
        }
        if capacity > context {
            return Err(Error::Context { needed: capacity, capacity: context });
        }
        let contexts = engine.contexts();
        let f16 = !contexts.is_empty() && contexts.iter().all(|context| context.capabilities().f16);
        let kv_type = self.kv_type.unwrap_or(if f16 { Element::F16 } else { Element::F32 });
        if !matches!(kv_type, Element::F32 | Element::F16) {
            return Err(Error::Invalid {
                op: "session",
                what: "a KV cache is of type f32 or f16".into(),
            });
        }
        Ok(self.kv_type(kv_type))
    }
}

/// Layers in host memory: [`Model::offloaded`](crate::model::Model::offloaded).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offloaded {
    /// Layers whose matrices are in host memory.
    pub layers: usize,
    /// Their bytes: what is copied to the GPU in every pass, over a prefill chunk or for a token
    /// of each sequence.
    pub bytes: u64,
}

/// A run of a model's layers on a device, and the memory that it takes there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelPart {
    /// The device.
    pub context: Context,
    /// Its layers. The first part has the embedding too, and the last the LM head: where these are one
    /// matrix, both have it.
    pub layers: Range<usize>,
    /// The memory.
    pub footprint: Footprint,
}

impl ModelPart {
    /// Returns the memory of all parts together.
    pub(crate) fn total(parts: &[Self]) -> Footprint {
        parts.iter().fold(Footprint::default(), |sum, part| sum.and(part.footprint))
    }
}

/// A step for the next tokens before anyone said how they are chosen.
pub(crate) fn unchosen() -> Error {
    Error::Invalid { op: "session", what: "no choice of tokens was set".into() }
}

/// A model's weights where they are computed with.
pub(crate) trait Engine: Send + Sync {
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
pub(crate) trait EngineSession: Send + Sync {
    /// Tokens in a sequence. Panics if there is no such sequence.
    fn len(&self, sequence: usize) -> usize;

    /// Forgets all but the first `tokens` of a sequence; recurrent layers forget all, or all after
    /// what [`EngineSession::keep_states`] allows.
    fn truncate(&mut self, sequence: usize, tokens: usize);

    /// Has recurrent layers keep what it takes to forget tokens of the next step that appends to a
    /// sequence, if that has at most `MOST_DRAFTED + 1`: the sequence can then be truncated to any
    /// length from its present one on without being computed again. Other layers need nothing.
    /// What was kept before is no longer.
    fn keep_states(&mut self, sequence: usize) -> Result<()> {
        let _ = sequence;
        Ok(())
    }

    /// Another session with the same sequences.
    fn fork(&self) -> Result<Box<dyn EngineSession>>;

    /// Keys and values in host memory, by layer and sequence.
    fn read(&self) -> Result<Pending<Vec<Vec<HostKvCache>>>>;

    /// Overwrites all sequences with what was read of a session; there is room for it.
    fn write(&mut self, layers: Vec<Vec<HostKvCache>>) -> Result<()>;

    /// What recurrent layers keep, by sequence and recurrent layer, in an order of its own.
    fn read_states(&self) -> Result<Pending<Vec<Vec<Vec<f32>>>>> {
        Ok(Box::pin(std::future::ready(Ok(Vec::new()))))
    }

    /// Overwrites what recurrent layers keep with what was read of a session.
    fn write_states(&mut self, states: &[Vec<Vec<f32>>]) -> Result<()> {
        let _ = states;
        Ok(())
    }

    /// How many tokens are computed together, at most, where a sequence gets more than one.
    fn batch(&self) -> usize;

    /// Number of prefill chunks that are best submitted beyond the one that is awaited.
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
    fn choose_by(&mut self, choice: SamplingPlan) -> Result<()>;

    /// Restricts what [`EngineSession::step_next`] chooses for a sequence to tokens with a bit in
    /// `mask`, as [`LogitMasks`](crate::transformer::LogitMasks) has it, from the next step on.
    /// `None` allows all.
    fn mask(&mut self, sequence: usize, mask: Option<&[u32]>) -> Result<()>;

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
