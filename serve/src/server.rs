//! A server's state, its life, and the work of a request before its first token.

use crate::{
    answer::{Choice, Choices},
    embeddings,
    error::{ApiError, Result},
    http,
    request::{Prompt, Request},
};
use axum::{http::StatusCode, serve::ListenerExt as _};
use bitnet_wgpu::{
    Error,
    model::{Batch, EmbedOptions, GenerateOptions, Reasoning, Tokenizer},
};
use serde_json::Value;
use std::{
    io,
    num::NonZero,
    sync::{Arc, OnceLock},
    thread::available_parallelism,
    time::{Duration, SystemTime},
};
use tokio::{
    net::TcpListener,
    select,
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};

/// How long connections have to take what is left for them when the server has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often it is looked whether the batch still runs: nobody says when it ends.
const LOOK: Duration = Duration::from_millis(500);

/// How a model is served.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The model's name, which requests may give.
    pub name: String,
    /// What requests must send as `Authorization: Bearer KEY`; none unless it is set.
    pub key: Option<String>,
    /// What requests do not say of sampling and ends: the library's defaults, unless they are set. Of its `max_tokens`, its `max_length` and its seed
    /// nothing is taken: [`Options::max_tokens`] and [`Options::seed`] are these.
    pub defaults: GenerateOptions,
    /// The most tokens of an answer whose request does not say how many: 16 for completions, and what fits for chats, unless it is set.
    pub max_tokens: Option<usize>,
    /// Seeds the random numbers of requests without a seed of their own: each has a new one, unless it is set.
    pub seed: Option<u64>,
    /// What encodes texts and conversations: the model's own, unless it is set.
    pub tokenizer: Option<Tokenizer>,
    /// The longest body, in bytes: 4 MiB, unless it is set.
    pub body: usize,
    /// How long a body may take to arrive: 30 seconds, unless it is set.
    pub patience: Duration,
    /// How long answers that have begun may go on when the server is to end: 10 seconds, unless it is set.
    pub grace: Duration,
}

impl Options {
    /// For a model of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            key: None,
            defaults: GenerateOptions::default(),
            max_tokens: None,
            seed: None,
            tokenizer: None,
            body: 4 << 20,
            patience: Duration::from_secs(30),
            grace: Duration::from_secs(10),
        }
    }

    /// Sets [`Options::key`].
    #[must_use]
    pub fn key(self, key: Option<String>) -> Self {
        Self { key, ..self }
    }

    /// Sets [`Options::defaults`].
    #[must_use]
    pub fn defaults(self, defaults: GenerateOptions) -> Self {
        Self { defaults, ..self }
    }

    /// Sets [`Options::max_tokens`].
    #[must_use]
    pub fn max_tokens(self, max_tokens: Option<usize>) -> Self {
        Self { max_tokens, ..self }
    }

    /// Sets [`Options::seed`].
    #[must_use]
    pub fn seed(self, seed: Option<u64>) -> Self {
        Self { seed, ..self }
    }

    /// Sets [`Options::tokenizer`].
    #[must_use]
    pub fn tokenizer(self, tokenizer: Option<Tokenizer>) -> Self {
        Self { tokenizer, ..self }
    }

    /// Sets [`Options::body`].
    #[must_use]
    pub fn body(self, body: usize) -> Self {
        Self { body, ..self }
    }

    /// Sets [`Options::patience`].
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets [`Options::grace`].
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }
}

/// How far the end of a server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Runs,
    /// What has begun goes on, and nothing begins.
    Ends,
    /// What still goes on is cut.
    Cut,
}

/// A model to be served. Clones are the same server.
#[derive(Clone)]
pub struct Server {
    pub(crate) batch: Batch,
    pub(crate) options: Arc<Options>,
    pub(crate) started: u64,
    pub(crate) phase: Arc<watch::Sender<Phase>>,
    /// Of answers that go on.
    alive: Arc<watch::Sender<()>>,
    /// Of requests for answers that are prepared, and of those that wait for it, with all that they brought.
    arrivals: Arc<Semaphore>,
    /// Templates and tokenizers compute, on threads that may: as many at once as there are cores.
    preparing: Arc<Semaphore>,
    /// Requests for vectors are computed one after another, beside the batch: each takes memory of its own.
    embedding: Arc<Semaphore>,
    /// Of the one that is computed, and of those that wait for it.
    places: Arc<Semaphore>,
    /// In what the device of the vectors was found to be lost: a batch without requests does not notice it.
    lost: Arc<OnceLock<String>>,
}

impl Server {
    /// Serves what a batch has room for.
    ///
    /// # Errors
    /// [`Error::Invalid`] for [`Options::defaults`] with which no request can be served: those that speculate, or go on with what was generated before, and
    /// those of [`GenerateOptions::check`].
    pub fn new(batch: Batch, options: Options) -> bitnet_wgpu::Result<Self> {
        let GenerateOptions { speculate, resumed, .. } = &options.defaults;
        for (option, is_set) in [("speculate", speculate.is_some()), ("resumed", *resumed > 0)] {
            if is_set {
                return Err(Error::Invalid {
                    op: "serve",
                    what: format!("the defaults have `{option}`, which requests cannot be served with"),
                });
            }
        }
        options.defaults.check(batch.model().config().vocab)?;
        let preparing = Arc::new(Semaphore::new(available_parallelism().map_or(1, NonZero::get)));
        let (phase, alive) = (Arc::new(watch::Sender::new(Phase::Runs)), Arc::new(watch::Sender::new(())));
        let places = [room(&batch), 1, batch.options().queue.saturating_add(1)];
        let [arrivals, embedding, places] = places.map(|permits| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))));
        let (options, lost) = (Arc::new(options), Arc::default());
        Ok(Self { batch, options, started: now(), phase, alive, arrivals, preparing, embedding, places, lost })
    }

    /// Why nothing will be answered any more, if so.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.batch.ended().or_else(|| self.lost.get().map(|during| Error::DeviceLost { during: during.clone() }))
    }

    /// Answers who comes to a listener, until `end` is over: then nothing new begins, what has begun has [`Options::grace`] to end, and is cut.
    ///
    /// # Errors
    /// What the listener reports, and an [`Error`] inside for what ends the batch: a device that is lost, or a panic. Load the model anew then, or begin
    /// the process anew.
    pub async fn run(self, listener: TcpListener, end: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        // Tokens are small and to be seen at once.
        let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
        let (ended, closing, failing) = (self.clone(), self.clone(), self.clone());
        let serving = axum::serve(listener, http::router(self)).with_graceful_shutdown(async move {
            end.await;
            ended.phase.send_replace(Phase::Ends);
            // Over when nobody listens any more, which is to say that no answer goes on.
            let _ = timeout(ended.options.grace, ended.alive.closed()).await;
            ended.phase.send_replace(Phase::Cut);
        });
        let cut = async move {
            let _ = closing.phase.subscribe().wait_for(|phase| *phase == Phase::Cut).await;
            sleep(LAST_WORDS).await;
        };
        let failed = async move {
            let error = loop {
                if let Some(error) = failing.failure() {
                    break error;
                }
                sleep(LOOK).await;
            };
            sleep(LAST_WORDS).await;
            io::Error::other(error)
        };
        select! {
            served = serving => served,
            () = cut => Ok(()),
            error = failed => Err(error),
        }
    }

    /// Begins what a request asks for.
    pub(crate) async fn begin(&self, read: impl FnOnce(&Options) -> Result<Request> + Send + 'static) -> Result<(Request, Choices)> {
        let alive = self.alive.subscribe();
        if *self.phase.borrow() != Phase::Runs {
            return Err(ApiError::ending());
        }
        let busy = |_| ApiError::busy(format!("{} requests are being prepared, and no more may wait for it", room(&self.batch)));
        let place = self.arrivals.clone().try_acquire_owned().map_err(busy)?;
        let permit = self.preparing.clone().acquire_owned().await.map_err(|_| ApiError::ending())?;
        let server = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            // It goes on though the client may have gone.
            let _held = (place, permit);
            let mut request = read(&server.options)?;
            let streams = server.start(&mut request)?;
            let choices = Choices::new(streams, request.reasoning, alive, &server.phase);
            Ok((request, choices))
        });
        work.await.unwrap_or_else(|_| Err(panicked()))
    }

    /// The vectors of a request's texts, as the body of the answer. A client that goes has the work given up.
    pub(crate) async fn embed(&self, read: impl FnOnce() -> Result<embeddings::Request> + Send + 'static) -> Result<Value> {
        let _alive = self.alive.subscribe();
        if *self.phase.borrow() != Phase::Runs {
            return Err(ApiError::ending());
        }
        // One request at a time is computed; others wait with all that they brought, as many as prompts may.
        let queue = self.batch.options().queue;
        let busy = || Error::Busy { running: 1, waiting: queue, slots: 1, queue };
        let _place = self.places.try_acquire().map_err(|_| ApiError::library("input", &busy()))?;
        let permit = self.preparing.clone().acquire_owned().await.map_err(|_| ApiError::ending())?;
        let server = self.clone();
        let encoding = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let request = read()?;
            server.check_model(request.model.as_deref())?;
            request.check(server.batch.model().config().hidden)?;
            let ids = request.texts.iter().map(|text| server.text(text)).collect::<Result<Vec<_>>>()?;
            Ok((request, ids))
        });
        let (request, ids) = encoding.await.unwrap_or_else(|_| Err(panicked()))?;
        let mut phase = self.phase.subscribe();
        let work = async {
            let _permit = self.embedding.acquire().await.map_err(|_| ApiError::ending())?;
            if *self.phase.borrow() != Phase::Runs {
                return Err(ApiError::ending());
            }
            let found = self.batch.model().embed_ids(&ids, &EmbedOptions::default()).await;
            if let Err(Error::DeviceLost { during }) = &found {
                self.lost.get_or_init(|| during.clone());
            }
            found.map_err(|error| match error {
                // Of the model's files, which are no business of a client's.
                Error::Unsupported { .. } => {
                    ApiError::with_status(StatusCode::NOT_IMPLEMENTED, "the model's files ask for vectors of a kind that is not supported")
                }
                error => ApiError::library("input", &error),
            })
        };
        let found = select! {
            found = work => found?,
            _ = phase.wait_for(|phase| *phase == Phase::Cut) => return Err(ApiError::ending()),
        };
        let name = self.options.name.clone();
        tokio::task::spawn_blocking(move || request.answer(&name, &found)).await.map_err(|_| panicked())
    }

    /// The tokens of a text that is to be a vector.
    fn text(&self, text: &Prompt) -> Result<Vec<u32>> {
        let ids = match text {
            // The library says which one is empty.
            Prompt::Text(text) if text.is_empty() => Ok(Vec::new()),
            Prompt::Text(text) => self.batch.model().tokenizer().and_then(|tokenizer| tokenizer.encode_for_embedding(text)),
            other => self.ids(other),
        };
        // No longer than the texts for which the server has room.
        let capacity = self.batch.options().capacity;
        let fits = |ids: Vec<u32>| if ids.len() > capacity { Err(Error::Context { needed: ids.len(), capacity }) } else { Ok(ids) };
        ids.and_then(fits).map_err(|error| ApiError::library("input", &error))
    }

    fn check_model(&self, asked: Option<&str>) -> Result<()> {
        let there = &self.options.name;
        match asked {
            Some(asked) if asked != there => Err(ApiError::model(asked, there)),
            _ => Ok(()),
        }
    }

    /// The choices of all prompts, which run from now on.
    fn start(&self, request: &mut Request) -> Result<Vec<Choice>> {
        self.check_model(request.model.as_deref())?;
        let (field, n) = (request.field, request.n);
        let (prompts, most) = (request.prompts.len(), room(&self.batch));
        if prompts * n > most {
            // To try again would not help.
            let field = if prompts > most { field } else { "n" };
            return Err(ApiError::field(field, format!("{n} choices of {prompts} prompts; {most} in all may run and wait")));
        }
        let wrong = |error: Error| ApiError::library(field, &error);
        let told = |thinking| self.tokenizer().and_then(|tokenizer| tokenizer.with_thinking(thinking));
        let unheeded = |error| ApiError::library("chat_template_kwargs.enable_thinking", &error);
        let tokenizer = request.thinking.map(told).transpose().map_err(unheeded)?;
        let mut streams = Vec::new();
        for prompt in &request.prompts {
            let (ids, parts) = self.prompt(prompt, tokenizer.as_ref()).map_err(wrong)?;
            for _ in 0..n {
                let seed = request.options.sampling.seed.wrapping_add(streams.len() as u64);
                let options = request.options.clone().sampling(request.options.sampling.seed(seed));
                options.check(self.batch.model().config().vocab).map_err(|error| ApiError::request(error.to_string()))?;
                streams.push((self.batch.generate_ids(&ids, &options).map_err(wrong)?, parts.clone()));
            }
        }
        Ok(streams)
    }

    fn ids(&self, prompt: &Prompt) -> bitnet_wgpu::Result<Vec<u32>> {
        Ok(self.prompt(prompt, None)?.0)
    }

    fn tokenizer(&self) -> bitnet_wgpu::Result<&Tokenizer> {
        self.options.tokenizer.as_ref().map_or_else(|| self.batch.model().tokenizer(), Ok)
    }

    /// Its tokens, by another tokenizer than the server's where there is one, and for a conversation what tells the parts of the answer.
    fn prompt(&self, prompt: &Prompt, tokenizer: Option<&Tokenizer>) -> bitnet_wgpu::Result<(Vec<u32>, Option<Reasoning>)> {
        let model = self.batch.model();
        let messages = match prompt {
            Prompt::Text(text) => return Ok((model.encode_prompt(text)?, None)),
            Prompt::Ids(ids) => return Ok((ids.clone(), None)),
            Prompt::Chat(messages) => messages,
        };
        let tokenizer = tokenizer.map_or_else(|| self.tokenizer(), Ok)?;
        let ids = tokenizer.chat(messages)?;
        let parts = Reasoning::after(tokenizer, &ids)?;
        Ok((ids, Some(parts)))
    }
}

/// How many choices may run and wait.
fn room(batch: &Batch) -> usize {
    batch.options().slots.saturating_add(batch.options().queue)
}

fn panicked() -> ApiError {
    ApiError::server("preparing the prompt panicked")
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
