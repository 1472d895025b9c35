//! Continuous batching.

use super::scheduler::{Request, RequestQueue, Scheduler};
use crate::{
    element::Element,
    error::{Error, Result},
    model::{
        engine::interface::SessionOptions,
        generate::{
            generation::{BatchThread, Generation},
            options::GenerateOptions,
        },
        load::model::Model,
        threads::{unbounded::unbounded, workers::Work},
    },
};
use std::sync::{Arc, atomic::AtomicUsize};

/// Size of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    slots: usize,
    capacity: usize,
    queue: usize,
    prefill_chunk: Option<usize>,
    kv_type: Option<Element>,
}

impl BatchOptions {
    /// Returns options for `slots` sequences that run at a time, of up to `capacity` tokens each.
    /// The capacity is at most the model's context.
    pub fn new(slots: usize, capacity: usize) -> Self {
        Self { slots, capacity, queue: 64, prefill_chunk: None, kv_type: None }
    }

    /// Sets the number of prompts that may wait for a slot; the default is 64.
    #[must_use]
    pub fn queue(self, queue: usize) -> Self {
        Self { queue, ..self }
    }

    /// Sets the size of prefill chunks: tokens of prompts that are computed between two tokens of
    /// the sequences that run. The default is the largest, 512 on a GPU (2048 with tensor cores)
    /// and 64 on the CPU. With less, running sequences wait less and prompts longer.
    #[must_use]
    pub fn prefill_chunk(self, tokens: usize) -> Self {
        Self { prefill_chunk: Some(tokens), ..self }
    }

    /// Sets the type of the KV cache; see [`SessionOptions::kv_type`].
    #[must_use]
    pub fn kv_type(self, kv_type: impl Into<Option<Element>>) -> Self {
        Self { kv_type: kv_type.into(), ..self }
    }

    /// Returns the number of sequences that run at a time.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the number of tokens that each sequence may have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of prompts that may wait for a slot.
    pub fn get_queue(&self) -> usize {
        self.queue
    }

    pub(crate) fn session(&self) -> SessionOptions {
        SessionOptions::new(self.slots, self.capacity).kv_type(self.kv_type)
    }
}

/// Number of sequences of a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchLoad {
    /// Sequences that run.
    pub running: usize,
    /// Prompts that wait for a slot.
    pub waiting: usize,
}

/// Continuous batching: many sequences of one model that come and go, and step together. Clones are
/// the same batch. It computes on a thread of its own, and ends with its last clone and generation.
///
/// A prompt takes a free slot, or waits for one in a bounded queue. Its prefill chunks are computed
/// between the steps of running sequences. A free slot keeps its KV cache: a prompt takes the slot
/// with the longest shared prefix and computes only the rest. A sequence's tokens do not depend on
/// other sequences.
///
/// A GPU chooses each sequence's tokens by its own options. What it cannot choose by is
/// [`logits`](GenerateOptions::logits()), [`bad_words`](GenerateOptions::bad_words()),
/// [`logprobs`](GenerateOptions::logprobs()), [`no_repeat_ngram`](GenerateOptions::no_repeat_ngram()) and, until they are reached,
/// [`min_tokens`](GenerateOptions::min_tokens()): while one sequence has any of these, the logits of all that
/// step with it are read back in every step, and none is submitted ahead. With a grammar the GPU chooses, but
/// no step is submitted ahead either.
///
/// ```no_run
/// # async fn serve(model: bitnet_wgpu::model::Model) -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::model::{BatchOptions, GenerateOptions};
///
/// let batch = model.batch(BatchOptions::new(8, 2048))?; // eight sequences of up to 2048 tokens
/// let mut story = batch.generate("Once upon a time", &GenerateOptions::default())?;
/// let fable = batch.generate("The bear", &GenerateOptions::default().max_tokens(50))?; // runs beside it
/// while let Some(token) = story.next_token().await {
///     print!("{}", token?.text);
/// }
/// println!("{}", fable.all().await?.text);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Batch {
    model: Model,
    options: BatchOptions,
    thread: Arc<Thread>,
}

/// Ends with its last owner.
struct Thread {
    requests: Arc<RequestQueue>,
    _work: Work,
}

impl BatchThread for Thread {
    fn cause(&self) -> Error {
        self.requests.cause()
    }
}

impl Model {
    /// Starts continuous batching, in the memory of a session of as many sequences and tokens:
    /// [`Model::session_footprint`].
    ///
    /// # Errors
    /// As [`Model::session`]; [`Error::Invalid`] for prefill chunks of no tokens.
    pub fn batch(&self, options: BatchOptions) -> Result<Batch> {
        if options.prefill_chunk == Some(0) {
            return Err(Error::Invalid { op: "batch", what: "prefill chunks of 0 tokens".into() });
        }
        let (session, requests) =
            (self.session(options.session())?, Arc::<RequestQueue>::default());
        let chunk = options.prefill_chunk.unwrap_or(usize::MAX).min(session.batch());
        let _work = self.workers().spawn(Scheduler::new(session, requests.clone(), chunk).run())?;
        Ok(Batch { model: self.clone(), options, thread: Arc::new(Thread { requests, _work }) })
    }
}

impl Batch {
    /// Continues a prompt, as [`Model::generate`] does. It begins when there is a slot, whether
    /// anybody asks for tokens or not.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the model has none; else as [`Batch::generate_ids`].
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation> {
        self.generate_ids(&self.model.encode_prompt(prompt)?, options)
    }

    /// Continues a prompt of token ids, which are taken as they are. Of the options, `kv_type` is
    /// the batch's own.
    ///
    /// # Errors
    /// [`Error::Busy`] if as many run and wait as may; [`Error::Context`] if the prompt does not
    /// fit into a slot; [`Error::BatchEnded`] if the device failed before; else as
    /// [`Model::generate_ids`].
    pub fn generate_ids(&self, prompt: &[u32], options: &GenerateOptions) -> Result<Generation> {
        self.continue_as(0, prompt, options)
    }

    /// For the n-th of prompts that belong together, which draws its random numbers from seed + n.
    pub(crate) fn continue_as(
        &self,
        n: usize,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation> {
        if options.speculate.is_some() {
            let what =
                "a batch does not speculate: a step of several sequences is no cheaper for one";
            return Err(Error::Invalid { op: "generate", what: what.into() });
        }
        let capacity = self.options.capacity;
        self.model.check_prompt(prompt, capacity)?;
        let sequence = self.model.sequence(n, prompt, options)?;
        let (stop, (tokens, items), cached) =
            (sequence.stop, unbounded(), Arc::<AtomicUsize>::default());
        if stop.is_none() {
            let request = Request { sequence, tokens, cached: cached.clone() };
            self.thread.requests.enter(request, self.options.slots, self.options.queue)?;
        }
        Ok(Generation::in_batch(items, self.thread.clone(), prompt.len(), cached, stop))
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the options of [`Model::batch`].
    pub fn options(&self) -> BatchOptions {
        self.options
    }

    /// Limits the sequences that run at a time, for example to spare a hot GPU or a battery. Those
    /// that run already continue, and waiting ones keep their places, with 0 all of them. Tokens do
    /// not change. The number of slots, or more, is no limit.
    ///
    /// ```
    /// # fn cool(batch: &bitnet_wgpu::model::Batch, context: &bitnet_wgpu::Context) {
    /// // Now and then:
    /// let hot = context.health().temperature.is_some_and(|celsius| celsius.value > 90.0);
    /// batch.limit(if hot { 1 } else { batch.options().slots() });
    /// # }
    /// ```
    pub fn limit(&self, running: usize) {
        self.thread.requests.limit(running);
    }

    /// Returns how many sequences run and wait.
    pub fn load(&self) -> BatchLoad {
        let (running, waiting) = self.thread.requests.counts();
        BatchLoad { running, waiting }
    }

    /// Returns the error that ended the batch, of the device or a panic of its thread. After it,
    /// every prompt is refused.
    pub fn ended(&self) -> Option<Error> {
        self.thread.requests.ended()
    }
}
