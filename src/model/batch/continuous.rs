//! Continuous batches: prompts that come while others run, and leave when they end.

use super::scheduler::{Desk, Item, Request, Slots};
use crate::{
    element::Element,
    error::{Error, Result},
    memory::Footprint,
    model::{
        engine::interface::SessionOptions,
        generate::{options::GenerateOptions, sequence::Token, stop::Stop},
        load::model::Model,
        threads::{
            background::Blocking,
            unbounded::{Receiver, mailbox},
            workers::Work,
        },
    },
};
use futures_core::Stream;
use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

/// How much a [`Batch`] takes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BatchOptions {
    /// Sequences that run side by side.
    pub slots: usize,
    /// Tokens that each may have, its prompt's among them; at most the model's context.
    pub capacity: usize,
    /// Prompts that may wait for a slot: 64, unless it is set.
    pub queue: usize,
    /// Tokens of prompts that are computed between two tokens of the sequences that run: as many as
    /// are computed together, 512 on a GPU (2048 on its matrix units) and 64 on the CPU, unless
    /// fewer are set: those that run wait less then, and prompts more.
    pub piece: Option<usize>,
    /// The type of cached keys and values; see [`SessionOptions::cache`].
    pub cache: Option<Element>,
}

impl BatchOptions {
    /// So many slots of so many tokens.
    pub fn new(slots: usize, capacity: usize) -> Self {
        Self { slots, capacity, queue: 64, piece: None, cache: None }
    }

    /// Sets [`BatchOptions::queue`].
    #[must_use]
    pub fn queue(self, queue: usize) -> Self {
        Self { queue, ..self }
    }

    /// Sets [`BatchOptions::piece`].
    #[must_use]
    pub fn piece(self, piece: usize) -> Self {
        Self { piece: Some(piece), ..self }
    }

    /// Sets [`BatchOptions::cache`].
    #[must_use]
    pub fn cache(self, cache: impl Into<Option<Element>>) -> Self {
        Self { cache: cache.into(), ..self }
    }

    pub(crate) fn session(&self) -> SessionOptions {
        SessionOptions::new(self.slots, self.capacity).cache(self.cache)
    }
}

/// How busy a [`Batch`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchLoad {
    /// Sequences that run.
    pub running: usize,
    /// Prompts that wait for a slot.
    pub waiting: usize,
}

/// Sequences that come and go, and step together: many users of one model. Clones are the same
/// batch; it computes on a thread of the model's own, and ends with its last clone and stream.
///
/// A prompt takes a free slot, or waits for one in a queue that has an end. It is computed in
/// pieces, between the steps of those that run, from the first token on that the slot does not have
/// already: of free slots, the one that has most of its beginning is taken, so that the next turn
/// of a conversation costs what is new in it. A sequence's tokens are the same as alone, in any
/// company.
///
/// A GPU chooses each sequence's tokens by its own options. What it cannot choose by is
/// [`GenerateOptions::logits`], [`GenerateOptions::bad_words`],
/// [`GenerateOptions::no_repeat_ngram`] and, until there are so many,
/// [`GenerateOptions::min_tokens`]: while one sequence has any of these, the logits of all that
/// step with it are read back in every step, and none is submitted ahead.
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
    desk: Arc<Desk>,
    _work: Work,
}

impl Model {
    /// The GPU memory that a batch will need: [`Model::session_footprint`] of its slots.
    ///
    /// # Errors
    /// As [`Model::session_footprint`].
    pub fn batch_footprint(&self, options: BatchOptions) -> Result<Footprint> {
        self.session_footprint(options.session())
    }

    /// Room for sequences that come and go.
    ///
    /// # Errors
    /// As [`Model::session`]; [`Error::Invalid`] for pieces of no tokens.
    pub fn batch(&self, options: BatchOptions) -> Result<Batch> {
        if options.piece == Some(0) {
            return Err(Error::Invalid {
                op: "batch",
                what: "prompts in pieces of 0 tokens".into(),
            });
        }
        let (session, desk) = (self.session(options.session())?, Arc::<Desk>::default());
        let piece = options.piece.map_or(session.batch(), |piece| piece.min(session.batch()));
        let _work = self.workers().spawn(Slots::new(session, desk.clone(), piece).run())?;
        Ok(Batch { model: self.clone(), options, thread: Arc::new(Thread { desk, _work }) })
    }
}

impl Batch {
    /// Continues a text, as [`Model::generate`] does. It begins when there is a slot, whether
    /// anybody asks for tokens or not.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the model has none; else as [`Batch::generate_ids`].
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<TokenStream> {
        self.generate_ids(&self.model.encode_prompt(prompt)?, options)
    }

    /// Continues a prompt of token ids, which are taken as they are. Of the options, `cache` is the
    /// batch's own.
    ///
    /// # Errors
    /// [`Error::Busy`] if as many run and wait as may; [`Error::Context`] if the prompt does not
    /// fit into a slot; [`Error::BatchEnded`] if the device failed before; else as
    /// [`Model::generate_ids`].
    pub fn generate_ids(&self, prompt: &[u32], options: &GenerateOptions) -> Result<TokenStream> {
        self.continue_as(0, prompt, options)
    }

    /// For the n-th of prompts that belong together, which draws its random numbers from seed + n.
    pub(crate) fn continue_as(
        &self,
        n: usize,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<TokenStream> {
        if options.speculate.is_some() {
            let what =
                "a batch does not speculate: a step of several sequences is no cheaper for one";
            return Err(Error::Invalid { op: "generate", what: what.into() });
        }
        let capacity = self.options.capacity;
        self.model.check_prompt(prompt, capacity)?;
        let sequence = self.model.sequence(n, prompt, options)?;
        let (stop, (tokens, items), cached) =
            (sequence.stop, mailbox(), Arc::<AtomicUsize>::default());
        if stop.is_none() {
            let request = Request { sequence, tokens, cached: cached.clone() };
            self.thread.desk.enter(request, self.options.slots, self.options.queue)?;
        }
        Ok(TokenStream {
            items,
            thread: self.thread.clone(),
            prompt: prompt.len(),
            cached,
            stop,
            ended: stop.is_some(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What it was made with.
    pub fn options(&self) -> BatchOptions {
        self.options
    }

    /// From now on no sequence begins while so many run, whatever the slots: for an app that spares
    /// a hot GPU or a battery. Those that run go on, those that wait keep their places, with 0 all
    /// of them; nobody's tokens change. As many as there are slots, or more, is no limit.
    ///
    /// ```
    /// # fn cool(batch: &bitnet_wgpu::model::Batch, context: &bitnet_wgpu::Context) {
    /// // Now and then:
    /// let hot = context.health().temperature.is_some_and(|celsius| celsius.value > 90.0);
    /// batch.limit(if hot { 1 } else { batch.options().slots });
    /// # }
    /// ```
    pub fn limit(&self, running: usize) {
        self.thread.desk.limit(running);
    }

    /// How busy it is.
    pub fn load(&self) -> BatchLoad {
        let (running, waiting) = self.thread.desk.counts();
        BatchLoad { running, waiting }
    }

    /// Why it ended, if it did: what a device reported, or a panic of its thread. Every prompt is
    /// refused from then on.
    pub fn ended(&self) -> Option<Error> {
        self.thread.desk.ended()
    }
}

/// The continuation of a prompt in a [`Batch`]: a [`Stream`] of tokens, or by a `for` loop (which
/// blocks) an iterator. Tokens that nobody takes are kept, up to the last: who reads slowly makes
/// nobody wait. Dropped, it leaves its slot, or the queue, before the next step.
pub struct TokenStream {
    items: Receiver<Item>,
    thread: Arc<Thread>,
    prompt: usize,
    cached: Arc<AtomicUsize>,
    stop: Option<Stop>,
    ended: bool,
}

impl TokenStream {
    /// The next token, as a future for any executor; none after the last.
    pub async fn next_token(&mut self) -> Option<Result<Token>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// How many tokens the prompt has.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt
    }

    /// How many of these its slot had already, from a text with the same beginning, so that they
    /// were not computed: known with the first token.
    pub fn cached_tokens(&self) -> usize {
        self.cached.load(Ordering::Relaxed)
    }

    /// Why it ended; none while there are tokens to take.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// All that is left.
    ///
    /// # Errors
    /// [`Error::BatchEnded`] for what a device reports; [`Error::Overflow`] for logits that are not
    /// finite.
    pub async fn all(mut self) -> Result<Generated> {
        let mut all = Generated::empty();
        while let Some(token) = self.next_token().await {
            all.push(&token?, self.stop);
        }
        // It may have ended before, without a token.
        all.stop = self.stop.unwrap_or(all.stop);
        Ok(all)
    }
}

impl Stream for TokenStream {
    type Item = Result<Token>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Token>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(item) = self.items.poll_next(cx) else { return Poll::Pending };
        let item = item.unwrap_or_else(|| Err(self.thread.desk.cause()));
        self.ended = item.as_ref().map_or(true, |(_, stop)| stop.is_some());
        Poll::Ready(Some(item.map(|(token, stop)| {
            self.stop = stop;
            token
        })))
    }
}

impl IntoIterator for TokenStream {
    type Item = Result<Token>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Blocking<Self> {
        Blocking(self)
    }
}

impl IntoIterator for &mut TokenStream {
    type Item = Result<Token>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Blocking<Self> {
        Blocking(self)
    }
}

/// What came of one prompt.
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

impl Generated {
    /// Before the first token.
    pub(crate) fn empty() -> Self {
        Self { ids: Vec::new(), text: String::new(), stop: Stop::MaxTokens }
    }

    /// Adds a token.
    pub(crate) fn push(&mut self, token: &Token, stop: Option<Stop>) {
        self.ids.push(token.id);
        self.text += &token.text;
        self.stop = stop.unwrap_or(self.stop);
    }
}
