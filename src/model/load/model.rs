//! A loaded model.

use super::{
    files::{self, MaybeTokenizer},
    settings::{LoadSettings, Origin},
};
use crate::{
    cpu::threads::Threads,
    element::Element,
    error::{Error, Result},
    formats::{ModelConfig, ModelFile},
    gpu::{context::Context, recording::Recording, tensor::Tensor},
    memory::Footprint,
    model::{
        engine::{
            cpu::CpuModel,
            gpu::{GpuModel, SplitModel},
            interface::{Engine, ModelPart, Offloaded, SessionOptions},
            layers::{HostEnds, HostLayer, LayerKinds},
        },
        generate::{
            constraint::ConstraintSource,
            generation::Generation,
            options::GenerateOptions,
            sequence::Sequence,
            speculation::{Speculation, Speculator},
            stop::{StopStrings, Writer},
        },
        session::{
            saved::Fingerprint,
            sequences::{Session, SessionError, check_tokens},
        },
        threads::workers::Workers,
        tokenizer::{chat::Message, text::Tokenizer},
    },
    spans::span,
};
use std::{path::Path, sync::Arc};

/// A loaded model. Clones share it. It computes on its own threads, so that its futures never block
/// an executor. Dropping the last clone waits for threads that are at work, except for those of
/// [`ModelBuilder::threads`](crate::model::ModelBuilder::threads), which end by themselves.
#[derive(Clone)]
pub struct Model {
    engine: Arc<dyn Engine>,
    tokenizer: MaybeTokenizer,
    workers: Arc<Workers>,
    threads: Threads,
    fingerprint: Fingerprint,
    /// Of what keys and values do not depend on.
    ends_fingerprint: Fingerprint,
    weight_bytes: usize,
    /// The files to load it again from.
    pub(super) origin: Option<Arc<Origin>>,
    pub(super) auto: Option<Arc<AutoChoice>>,
}

/// Which device [`Device::Auto`](crate::model::Device::Auto) took.
pub(super) struct AutoChoice {
    pub reason: String,
    /// The GPU's error for which the CPU took its place.
    pub error: Option<Error>,
}

/// Builds what computes a model.
fn engine(
    contexts: &[Context],
    config: ModelConfig,
    ends: HostEnds,
    layers: impl Iterator<Item = Result<HostLayer>>,
    kinds: impl FnOnce() -> Result<LayerKinds>,
    settings: &LoadSettings,
    threads: &Threads,
) -> Result<Arc<dyn Engine>> {
    let LoadSettings { offload, split, f16_attention, .. } = settings;
    Ok(match contexts {
        [] => Arc::new(CpuModel::new(config, ends, layers, threads.clone())?),
        [context] => {
            let how = (*offload, *f16_attention);
            Arc::new(GpuModel::new(context, config, ends, layers, kinds, how)?)
        }
        contexts => {
            let how = (&split[..], *f16_attention);
            Arc::new(SplitModel::new(contexts, config, ends, layers, kinds()?, how)?)
        }
    })
}

impl Model {
    /// Reads the weights and places them on these contexts, or for the CPU without one.
    pub(super) fn new(
        contexts: &[Context],
        file: &dyn ModelFile,
        tokenizer: MaybeTokenizer,
        settings: &LoadSettings,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let config = files::config(file)?;
        let count = config.layers;
        span!("load", layers = count);
        if !settings.ignore_unused {
            file.check_unused()?;
        }
        settings.check(contexts, count)?;
        let ends = HostEnds::read(file, settings.int8_head)?;
        let mut fingerprint = Fingerprint::new(&config, &ends);
        let ends_fingerprint = Fingerprint::of_ends(&config, &ends);
        let mut weight_bytes = size_of_val(ends.head().words());
        // Read as the engine asks for them, so that one layer at a time is in host memory on the
        // way to a GPU.
        let layers = (0..count).map(|layer| {
            progress(layer, count);
            let layer = HostLayer::read(file, layer)?;
            fingerprint.add_layer(&layer);
            let bytes = layer.matrices().into_iter().map(|matrix| size_of_val(matrix.words()));
            weight_bytes += bytes.sum::<usize>();
            Ok(layer)
        });
        let own_threads = settings.threads.filter(|_| contexts.is_empty());
        let threads = own_threads.map_or_else(|| Ok(Threads::default()), Threads::new)?;
        let of_kinds = config.clone();
        let kinds = || HostLayer::kinds(file, &of_kinds);
        let engine = engine(contexts, config, ends, layers, kinds, settings, &threads)?;
        contexts.iter().try_for_each(|context| context.check_there("loading a model"))?;
        progress(count, count);
        Ok(Self {
            engine,
            tokenizer,
            workers: Arc::default(),
            threads,
            fingerprint,
            ends_fingerprint,
            weight_bytes,
            origin: None,
            auto: None,
        })
    }

    /// Returns whether another model has the same weights.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.fingerprint, self.ends_fingerprint) == (other.fingerprint, other.ends_fingerprint)
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ModelConfig {
        self.engine.config()
    }

    /// Returns the options that the model's authors recommend: [`GenerateOptions::recommended`].
    pub fn options(&self) -> GenerateOptions {
        GenerateOptions::recommended(self.config())
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if its files are missing or wrong: such a model takes ids only.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        files::tokenizer(&self.tokenizer)
    }

    /// Returns the bytes of weights that a decoding step reads: those of the layers' matrices and
    /// of the LM head.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Returns why [`Device::Auto`](crate::model::Device::Auto) took the device that computes the
    /// model, for people to read; nothing for a device that the caller chose.
    pub fn auto_reason(&self) -> Option<&str> {
        self.auto.as_ref().map(|auto| auto.reason.as_str())
    }

    /// Returns the GPU's error for which [`Device::Auto`](crate::model::Device::Auto) took the CPU
    /// instead.
    pub fn gpu_error(&self) -> Option<&Error> {
        self.auto.as_ref().and_then(|auto| auto.error.as_ref())
    }

    /// Returns what stays in host memory by
    /// [`ModelBuilder::offload`](super::builder::ModelBuilder::offload) and is copied to the GPU in
    /// every pass: nothing on the CPU.
    pub fn offloaded(&self) -> Offloaded {
        self.engine.offloaded()
    }

    /// Returns the GPU that computes it, or the first of several; nothing for the CPU.
    pub fn context(&self) -> Option<&Context> {
        self.engine.contexts().first().copied()
    }

    /// Allocates a session: KV caches and buffers for some sequences.
    ///
    /// # Errors
    /// [`Error::Context`] for more capacity than the model's context; [`Error::Invalid`] for none;
    /// [`Error::MemoryLimit`] for more than a limited context has room for, see
    /// [`Model::session_footprint`]; what the device reports.
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        Session::new(self.engine.clone(), self.fingerprint, options)
    }

    /// Returns the GPU memory that a session needs beside the model's weights; zeros for a model on the
    /// CPU. It covers prefill chunks of full size and steps of all sequences. It leaves out recorded
    /// steps of prompts up to 64 tokens, penalties, draft tokens, and logits of every token. If a
    /// context's memory is limited, [`Model::session`] refuses what does not fit.
    ///
    /// ```no_run
    /// use bitnet_wgpu::model::{Model, SessionOptions};
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// let model = Model::open("path/to/a/model")?;
    /// let need = model.session_footprint(SessionOptions::new(4, 2048))?;
    /// println!("{} bytes, {} of them for keys and values", need.total(), need.cache);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Model::session`], but for memory.
    pub fn session_footprint(&self, options: SessionOptions) -> Result<Footprint> {
        Ok(ModelPart::total(&self.parts(options)?))
    }

    /// Returns [`Model::session_footprint`] of each device, with the layers that it has; nothing for
    /// the CPU.
    ///
    /// # Errors
    /// As [`Model::session_footprint`].
    pub(crate) fn parts(&self, options: SessionOptions) -> Result<Vec<ModelPart>> {
        self.engine.parts(options.checked(&*self.engine)?)
    }

    /// Compiles the kernels that a session of these options uses for prefill and decode, on all cores,
    /// so that the first token does not wait for them. Compiling begins at once, whether the future
    /// is awaited or not, and a model that is dropped waits for its end. Kernels of draft tokens,
    /// embeddings and logits of every token are not compiled. A model on the CPU has none. Kernels
    /// that are in the folder of
    /// [`ContextOptions::kernel_cache`](crate::ContextOptions::kernel_cache) are read from it.
    ///
    /// ```no_run
    /// # async fn start() -> bitnet_wgpu::Result<()> {
    /// use bitnet_wgpu::model::{Model, SessionOptions};
    ///
    /// let model = Model::open("path/to/a/model")?;
    /// model.warm_up(SessionOptions::new(1, model.config().context)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Model::session`], but for memory; [`Error::Shader`] for a kernel that the driver does
    /// not take.
    pub fn warm_up(
        &self,
        options: SessionOptions,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let engine = self.engine.clone();
        self.workers.run(async move {
            let options = options.checked(&*engine)?;
            engine.warm_up(options)?.await
        })
    }

    /// Loads the session of this model that [`Session::save`] wrote, on this or another device.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Format`] for a file that is damaged or of another model;
    /// [`Error::Invalid`] for another number of sequences; [`Error::Context`] where its tokens have
    /// no room; else as [`Model::session`].
    pub fn load_session(&self, path: impl AsRef<Path>, options: SessionOptions) -> Result<Session> {
        Session::load(self.engine.clone(), self.fingerprint, path.as_ref(), options)
    }

    /// Returns the logits after every token of `ids`, `[ids.len(), vocab]`, with a KV cache in f32.
    ///
    /// # Errors
    /// [`Error::Context`] for more tokens than the model's context; [`Error::Invalid`] for none, or
    /// tokens that are not in the vocabulary.
    pub async fn logits(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let (mut session, ids) = (self.session_of(ids.len())?, ids.to_vec());
        let work = async move {
            let mut logits = Vec::new();
            session.prefill_logits(0, &ids, |rows| logits.extend(rows)).await?;
            Ok(logits)
        };
        self.workers.run(work).await
    }

    /// Room for one sequence of this many tokens, to be exact about: with keys and values in 32
    /// bits.
    fn session_of(&self, tokens: usize) -> Result<Session> {
        self.session(SessionOptions::new(1, tokens.max(1)).kv_type(Element::F32))
    }

    /// Returns the output of a layer for hidden states `[tokens, hidden]` at the beginning of a
    /// text.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such layer; [`Error::Length`] if `hidden` is not whole
    /// rows.
    pub(crate) async fn layer_output(&self, layer: usize, hidden: &[f32]) -> Result<Vec<f32>> {
        let c = self.config();
        if layer >= c.layers {
            return Err(Error::Invalid {
                op: "model",
                what: format!("layer {layer}; there are {}", c.layers),
            });
        }
        if !hidden.len().is_multiple_of(c.hidden) || hidden.is_empty() {
            return Err(Error::Length {
                shape: [hidden.len() / c.hidden, c.hidden].into(),
                found: hidden.len(),
            });
        }
        let options = SessionOptions::new(1, hidden.len() / c.hidden);
        let (mut session, hidden) = (self.engine.clone().session(options)?, hidden.to_vec());
        self.workers.run(async move { session.layer_output(layer, &hidden)?.await }).await
    }

    /// Records the dispatches of a prompt for this device. Returns them with the tensor that gets the
    /// last logits.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a model that is not on a GPU; else as [`Model::logits`].
    pub(crate) fn record_prompt(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)> {
        self.session_of(ids.len())?.record(ids)
    }

    /// Records the dispatches of a greedy decoding step of `sequences` sequences with `past` tokens
    /// each, for this device. Their keys and values are zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a model that is not on a GPU, or for no sequences; [`Error::Context`]
    /// for more than the model's context.
    pub(crate) fn record_step(&self, sequences: usize, past: usize) -> Result<Recording> {
        self.session(SessionOptions::new(sequences, past.saturating_add(1)))?.record_step(past)
    }

    /// Continues a prompt, which gets BOS as the tokenizer's files say.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the model has none; else as [`Model::generate_ids`].
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation> {
        self.generate_ids(&self.encode_prompt(prompt)?, options)
    }

    /// Returns the tokens of a text for [`Model::generate_ids`]. An empty text is BOS, whatever the
    /// tokenizer adds.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]; [`Error::TextTooLong`] for a text that cannot fit into the model's
    /// context; else as [`Tokenizer::encode`].
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        files::encode_prompt(self.tokenizer()?, self.config(), prompt)
    }

    /// Continues a conversation, as the model's chat template writes it, with the assistant's turn.
    /// [`Model::conversation`] keeps the KV cache from turn to turn.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if it has none, or if it refuses the messages; else as
    /// [`Model::generate`].
    pub fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<Generation> {
        self.generate_ids(&self.tokenizer()?.within(self.config().context).chat(messages)?, options)
    }

    /// Continues a prompt of token ids, which are taken as they are.
    ///
    /// # Errors
    /// [`Error::Context`] if the prompt does not fit into the model's context; [`Error::Invalid`]
    /// for no tokens, tokens that are not in the vocabulary, or options outside their domain;
    /// [`Error::Tokenizer`] for stop strings, where there is no tokenizer.
    pub fn generate_ids(&self, prompt: &[u32], options: &GenerateOptions) -> Result<Generation> {
        let session = self.session(options.room(1, prompt.len(), self.config().context)?)?;
        Ok(self.generate_ids_in(session, prompt, options)?)
    }

    /// Continues a prompt in a session, as [`Model::generate`] does in a new one. `prompt` is the whole
    /// text; the prefix that the session has already is not computed again.
    /// [`Generation::into_session`] returns the session. For messages, see [`Model::conversation`].
    ///
    /// ```no_run
    /// # async fn tell() -> bitnet_wgpu::Result<()> {
    /// use bitnet_wgpu::model::{GenerateOptions, Model, SessionOptions};
    ///
    /// let (model, options) = (Model::open("path/to/a/model")?, GenerateOptions::default());
    /// let mut session = model.session(SessionOptions::new(1, 2048))?;
    /// let mut text = "Once upon a time".to_owned();
    /// for next in ["\n\nThen", "\n\nAt last"] {
    ///     let mut tale = model.generate_in(session, &text, &options)?;
    ///     while let Some(token) = tale.next_token().await {
    ///         print!("{}", token?.text);
    ///     }
    ///     text = text + tale.text() + next;
    ///     session = tale.into_session().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Model::generate`]; [`Error::Context`] where the session has too little room, see
    /// [`Session::grow`]; [`Error::Invalid`] for a session of another model or of several sequences.
    /// The error has the session.
    pub fn generate_in(
        &self,
        session: Session,
        prompt: &str,
        options: &GenerateOptions,
    ) -> Result<Generation, SessionError> {
        match self.encode_prompt(prompt) {
            Ok(prompt) => self.generate_ids_in(session, &prompt, options),
            Err(error) => Err(SessionError { error, session: session.into() }),
        }
    }

    /// [`Model::generate_in`] for a prompt of token ids. After a generation, the whole text is its
    /// prompt and [`Generation::ids`].
    ///
    /// # Errors
    /// As [`Model::generate_in`], without those of a tokenizer.
    pub fn generate_ids_in(
        &self,
        mut session: Session,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation, SessionError> {
        match self.sequence_in(&mut session, prompt, options) {
            Ok((sequence, speculator)) => {
                Ok(Generation::new(&self.workers, session, sequence, prompt.len(), speculator))
            }
            Err(error) => Err(SessionError { error, session: session.into() }),
        }
    }

    /// Checks a session and a prompt, and makes what continues it.
    fn sequence_in(
        &self,
        session: &mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<(Sequence, Option<Speculator>)> {
        if !session.is_of(&self.engine) || session.options().sequences != 1 {
            return Err(Error::Invalid {
                op: "generate",
                what: "a session of one sequence of this model is needed".into(),
            });
        }
        session.check_text(prompt)?;
        let sequence = self.sequence(0, prompt, options)?;
        let speculate =
            |speculation: &Speculation| Speculator::new(speculation, session, &options.sampling);
        let speculator = options.speculate.as_ref().map(speculate).transpose()?;
        Ok((sequence, speculator))
    }

    /// What makes sessions of it, and does not keep its threads.
    pub(crate) fn sessions(&self) -> impl Fn(SessionOptions) -> Result<Session> + Send + use<> {
        let (engine, fingerprint) = (self.engine.clone(), self.fingerprint);
        move |options| Session::new(engine.clone(), fingerprint, options)
    }

    /// The path that it was loaded from, for errors; none where it was made of a [`ModelFile`].
    pub(crate) fn path(&self) -> Option<&Path> {
        self.origin.as_ref().map(|origin| origin.path.as_path())
    }

    /// Checks a prompt for a sequence of this many tokens.
    pub(crate) fn check_prompt(&self, prompt: &[u32], capacity: usize) -> Result<()> {
        check_tokens(prompt, self.config().vocab, capacity)
    }

    /// The threads that its loops run on.
    pub(crate) fn threads(&self) -> Threads {
        self.threads.clone()
    }

    /// Where what it computes runs.
    pub(crate) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// The n-th of some prompts, to be continued as the options want it, which are checked.
    pub(crate) fn sequence(
        &self,
        n: usize,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Sequence> {
        options.check(self.config().vocab)?;
        if !options.stop.is_empty() {
            self.tokenizer()?;
        }
        let ends = self.ends(options);
        // Tokens that are resumed are no part of the prompt.
        let before = &prompt[..prompt.len().saturating_sub(options.resumed)];
        let begin =
            |source: &Arc<dyn ConstraintSource>| source.begin(self.tokenizer()?, before, &ends);
        let constraint = options.constraint.as_ref().map(begin).transpose()?;
        let text = self.tokenizer.as_ref().ok().map(Tokenizer::stream);
        let writer = Writer { text, stops: StopStrings::new(&options.stop) };
        Sequence::new(options, n, prompt, &ends, writer, constraint)
    }

    /// The tokens at which a generation ends.
    fn ends(&self, options: &GenerateOptions) -> Vec<u32> {
        if options.ignore_eos {
            return Vec::new();
        }
        let tokenizer = self.tokenizer.as_ref().map_or(&[][..], Tokenizer::eos);
        // A tokenizer's files may name others than the model can give.
        [&self.config().eos, tokenizer]
            .concat()
            .into_iter()
            .filter(|&id| (id as usize) < self.config().vocab)
            .collect()
    }
}

/// The model drafts for another.
impl From<&Model> for Speculation {
    fn from(model: &Model) -> Self {
        Self::draft_model(model.engine.clone(), model.fingerprint)
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c = self.config();
        let devices: Vec<_> = self
            .engine
            .contexts()
            .iter()
            .map(|context| context.capabilities().adapter.clone())
            .collect();
        let devices = if devices.is_empty() { "CPU".into() } else { devices.join(", ") };
        write!(f, "Model({}, {} layers × {}, on {devices})", c.architecture, c.layers, c.hidden)
    }
}
