//! A model's files before its weights are read.

use crate::{
    error::{Error, Result},
    formats::{
        self, Checkpoint, Gguf, I2sLayout, ModelConfig, ModelFile, gguf::write::NO_VOCABULARY,
        input_files::input_files, native::Native,
    },
    gpu::context::Context,
    memory::Footprint,
    model::{
        engine::{
            devices::Devices,
            gpu::{GpuModel, SplitModel},
            interface::ModelPart,
            layers::{HostEnds, HostLayer},
            offload::Offload,
        },
        generate::options::GenerateOptions,
        threads::workers::Threads,
        tokenizer::text::Tokenizer,
    },
};
use std::path::{Path, PathBuf};

/// How a model is loaded.
#[derive(Default)]
#[non_exhaustive]
pub struct LoadOptions<'a> {
    /// Quantise the head (the embedding too, where it is the head) to 8 bits with a scale a row:
    /// half the bytes, and on a large vocabulary most of what a token costs. Else, and where it is
    /// ternary, it stays as it is stored.
    pub int8_head: bool,
    /// Compute the attention of prompts on a GPU's matrix units, with queries and weights in
    /// halves: long prompts take less time, and logits differ in their last bits by how a prompt is
    /// cut, which in a batch depends on the others, and where a text is resumed. See
    /// [`rope_attention_in_halves_into`](crate::transformer::rope_attention_in_halves_into), which
    /// says where it serves; elsewhere nothing changes.
    pub half_attention: bool,
    /// Quantise linear layers that are in floats, though nothing in the files says that the model
    /// was trained for ternary weights. It writes gibberish then, unless it was. Without, such a
    /// model is refused.
    pub quantize: bool,
    /// Do linear layers quantise their activations? Unless it is set, the files say it. Those of a
    /// ternary Llama do not, and then it is guessed: see [`Checkpoint::with_quantized_activations`]
    /// and [`Gguf::with_quantized_activations`].
    pub quantized_activations: Option<bool>,
    /// How I2_S tensors of a GGUF file lie; see [`I2sLayout`].
    pub i2s_layout: I2sLayout,
    /// Load a model though its files have tensors that are not used, of more layers than its
    /// configuration has for example. Without, it is refused.
    pub ignore_unused: bool,
    /// Keep layers in host memory, for a model that is larger than the context's memory limit.
    pub offload: Offload,
    /// How many layers each of several contexts gets, in their order: see [`Devices`]. Empty, they
    /// are shared by what memory the contexts have left, up to their limits where they have some;
    /// equally, where that of one is not known.
    pub split: Vec<usize>,
    /// How many threads a model on the CPU computes on, from 1 to 1024: it has so many of its own.
    /// Unless it is set, such models share as many as the system gives, or as rayon's variable
    /// `RAYON_NUM_THREADS` says. The bits are the same on any number. On a GPU, and while files are
    /// read, nothing changes.
    pub threads: Option<usize>,
    /// Called with the layers that are loaded, and how many there are.
    pub progress: Option<&'a mut dyn FnMut(usize, usize)>,
}

impl<'a> LoadOptions<'a> {
    /// Sets [`LoadOptions::int8_head`].
    #[must_use]
    pub fn int8_head(self, int8_head: bool) -> Self {
        Self { int8_head, ..self }
    }

    /// Sets [`LoadOptions::half_attention`].
    #[must_use]
    pub fn half_attention(self, half_attention: bool) -> Self {
        Self { half_attention, ..self }
    }

    /// Sets [`LoadOptions::quantize`].
    #[must_use]
    pub fn quantize(self, quantize: bool) -> Self {
        Self { quantize, ..self }
    }

    /// Sets [`LoadOptions::quantized_activations`].
    #[must_use]
    pub fn quantized_activations(self, quantized: impl Into<Option<bool>>) -> Self {
        Self { quantized_activations: quantized.into(), ..self }
    }

    /// Sets [`LoadOptions::i2s_layout`].
    #[must_use]
    pub fn i2s_layout(self, i2s_layout: I2sLayout) -> Self {
        Self { i2s_layout, ..self }
    }

    /// Sets [`LoadOptions::ignore_unused`].
    #[must_use]
    pub fn ignore_unused(self, ignore_unused: bool) -> Self {
        Self { ignore_unused, ..self }
    }

    /// Sets [`LoadOptions::offload`].
    #[must_use]
    pub fn offload(self, offload: Offload) -> Self {
        Self { offload, ..self }
    }

    /// Sets [`LoadOptions::split`].
    #[must_use]
    pub fn split(self, split: impl Into<Vec<usize>>) -> Self {
        Self { split: split.into(), ..self }
    }

    /// Sets [`LoadOptions::threads`].
    #[must_use]
    pub fn threads(self, threads: impl Into<Option<usize>>) -> Self {
        Self { threads: threads.into(), ..self }
    }

    /// Can a model of so many layers be loaded so, to these?
    pub(crate) fn check(&self, devices: Devices<'_>, layers: usize) -> Result<()> {
        Threads::check(self.threads)?;
        self.offload.check(layers)?;
        devices.check(layers, &self.split)?;
        if devices.contexts().len() > 1 && self.offload != Offload::None {
            return Err(Error::Invalid {
                op: "split",
                what: "layers are split over devices or kept in host memory, not both".into(),
            });
        }
        Ok(())
    }

    /// The same, for another attempt.
    pub(crate) fn again(&mut self) -> LoadOptions<'_> {
        let Self {
            int8_head,
            half_attention,
            quantize,
            quantized_activations,
            i2s_layout,
            ignore_unused,
            offload,
            split,
            threads,
            progress,
        } = self;
        LoadOptions {
            int8_head: *int8_head,
            half_attention: *half_attention,
            quantize: *quantize,
            quantized_activations: *quantized_activations,
            i2s_layout: *i2s_layout,
            ignore_unused: *ignore_unused,
            offload: *offload,
            split: split.clone(),
            threads: *threads,
            progress: progress
                .as_mut()
                .map(|progress| &mut **progress as &mut dyn FnMut(usize, usize)),
        }
    }

    /// Sets [`LoadOptions::progress`].
    #[must_use]
    pub fn progress(self, progress: &'a mut dyn FnMut(usize, usize)) -> Self {
        Self { progress: Some(progress), ..self }
    }
}

/// A model's files, opened: its configuration and its tokenizer are known, its weights are not read
/// yet. So options and prompts can be checked before a load that takes its time,
/// [`Model::from_files`](crate::model::Model::from_files).
///
/// ```no_run
/// use bitnet_wgpu::model::{GenerateOptions, LoadOptions, Model, ModelFiles};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let files = ModelFiles::open("path/to/a/model", &LoadOptions::default())?;
/// let options = GenerateOptions::recommended(files.config()).max_tokens(100);
/// options.check(files.config().vocab)?;
/// let prompt = files.encode_prompt("Once upon a time")?;
/// let model = Model::from_files(None, &files, LoadOptions::default())?; // on the CPU
/// let story = model.generate_ids(&prompt, &options)?;
/// # Ok(())
/// # }
/// ```
pub struct ModelFiles {
    pub(crate) file: Box<dyn ModelFile>,
    pub(crate) tokenizer: MaybeTokenizer,
    pub(crate) origin: Origin,
}

/// What it takes to load a model again: its path, and [`LoadOptions`].
#[derive(Clone)]
pub(crate) struct Origin {
    pub path: PathBuf,
    quantize: bool,
    quantized_activations: Option<bool>,
    i2s_layout: I2sLayout,
    int8_head: bool,
    half_attention: bool,
    ignore_unused: bool,
    offload: Offload,
    split: Vec<usize>,
    threads: Option<usize>,
}

impl Origin {
    fn new(path: PathBuf, options: &LoadOptions<'_>) -> Self {
        let &LoadOptions {
            quantize,
            quantized_activations,
            i2s_layout,
            int8_head,
            half_attention,
            ignore_unused,
            offload,
            threads,
            ..
        } = options;
        let split = options.split.clone();
        Self {
            path,
            quantize,
            quantized_activations,
            i2s_layout,
            int8_head,
            half_attention,
            ignore_unused,
            offload,
            split,
            threads,
        }
    }

    /// The same files, read as they were opened, and loaded so.
    pub fn loaded(&self, options: &LoadOptions<'_>) -> Self {
        let Self { quantize, quantized_activations, i2s_layout, .. } = *self;
        Self {
            quantize,
            quantized_activations,
            i2s_layout,
            ..Self::new(self.path.clone(), options)
        }
    }

    /// For so many devices.
    pub fn options(&self, devices: usize) -> LoadOptions<'static> {
        let Self {
            quantize,
            quantized_activations,
            i2s_layout,
            int8_head,
            half_attention,
            ignore_unused,
            offload,
            threads,
            ..
        } = *self;
        let split = if self.split.len() == devices { self.split.clone() } else { Vec::new() };
        LoadOptions {
            quantize,
            quantized_activations,
            i2s_layout,
            int8_head,
            half_attention,
            ignore_unused,
            offload,
            split,
            threads,
            progress: None,
        }
    }
}

/// A tokenizer, or why there is none: models take ids without one.
pub(crate) type MaybeTokenizer = std::result::Result<Tokenizer, String>;

impl ModelFiles {
    /// Opens a model directory, a .gguf file or a native container. Of the options, it takes
    /// `quantize`, `quantized_activations` and `i2s_layout`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`], [`Error::Unsupported`]. What is wrong with a tokenizer is
    /// an error where text is used.
    pub fn open(path: impl AsRef<Path>, options: &LoadOptions<'_>) -> Result<Self> {
        let path = path.as_ref();
        // The process may be in another folder when it is read again.
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let origin = Origin::new(absolute, options);
        Ok(match formats::kind(path)? {
            formats::Kind::Directory(directory) => {
                let tokenizer = directory
                    .join("tokenizer.json")
                    .exists()
                    .then(|| Tokenizer::from_directory(&directory));
                let file = Checkpoint::open(&directory)?.with_quantize(options.quantize);
                let file = file.with_quantized_activations(options.quantized_activations);
                Self { file: Box::new(file), tokenizer: usable(tokenizer), origin }
            }
            formats::Kind::Gguf => {
                let file = Gguf::open(path)?
                    .with_i2s_layout(options.i2s_layout)
                    .with_quantize(options.quantize);
                let file = file.with_quantized_activations(options.quantized_activations);
                let named = file
                    .file()
                    .get("tokenizer.ggml.model")
                    .is_some_and(|model| model.as_str() != Some(NO_VOCABULARY));
                let tokenizer = named.then(|| Tokenizer::from_gguf(&file.vocabulary()?));
                Self { file: Box::new(file), tokenizer: usable(tokenizer), origin }
            }
            formats::Kind::Native => {
                let file =
                    Native::open(path)?.with_quantized_activations(options.quantized_activations);
                let tokenizer = file.tokenizer().transpose().map(|stored| {
                    stored.and_then(|(json, settings)| Tokenizer::from_stored(&json, settings))
                });
                Self { file: Box::new(file), tokenizer: usable(tokenizer), origin }
            }
        })
    }

    /// Returns the files that the model is read from: none of them is an output of a tool that
    /// reads it.
    ///
    /// ```
    /// use bitnet_wgpu::model::{LoadOptions, ModelFiles};
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// let files = ModelFiles::open("assets/tales-22m", &LoadOptions::default())?;
    /// assert!(files.paths()?.iter().any(|path| path.ends_with("model.safetensors")));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn paths(&self) -> Result<Vec<PathBuf>> {
        input_files(&self.origin.path)
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        self.file.config()
    }

    /// As [`Model::tokenizer`](crate::model::Model::tokenizer).
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        tokenizer(&self.tokenizer)
    }

    /// As [`Model::encode_prompt`](crate::model::Model::encode_prompt).
    ///
    /// # Errors
    /// [`Error::Tokenizer`]; [`Error::TextTooLong`] for a text that cannot fit into the model's
    /// context.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        encode_prompt(self.tokenizer()?, self.config(), prompt)
    }

    /// Checks a prompt and options as generating does.
    ///
    /// # Errors
    /// As [`Model::generate_ids`](crate::model::Model::generate_ids).
    pub fn check(&self, prompt: &[u32], options: &GenerateOptions) -> Result<()> {
        let c = config(&*self.file)?;
        options.check(c.vocab)?;
        if !options.stop.is_empty() {
            self.tokenizer()?;
        }
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= c.vocab) {
            return Err(Error::Invalid {
                op: "generate",
                what: format!("token {id}; the vocabulary has {}", c.vocab),
            });
        }
        options.room(1, prompt.len(), c.context).map(drop)
    }

    /// The GPU memory that the weights will need, and the host's for offloaded layers. It reads the
    /// tensors outside the layers and those of the first layer, as large as which the others are
    /// taken to be.
    ///
    /// # Errors
    /// As [`Model::load_with`](crate::model::Model::load_with).
    pub fn footprint(&self, context: &Context, options: &LoadOptions<'_>) -> Result<Footprint> {
        Ok(self
            .parts(context, options)?
            .pop()
            .map_or_else(Footprint::default, |part| part.footprint))
    }

    /// The same of each of several devices, with the layers that it will have; nothing for the CPU.
    ///
    /// # Errors
    /// As [`ModelFiles::footprint`].
    pub fn parts<'d>(
        &self,
        devices: impl Into<Devices<'d>>,
        options: &LoadOptions<'_>,
    ) -> Result<Vec<ModelPart>> {
        let (devices, ends, config) =
            (devices.into(), HostEnds::read(&*self.file, options.int8_head)?, config(&*self.file)?);
        options.check(devices, config.layers)?;
        let first = HostLayer::read(&*self.file, 0)?;
        let [context] = devices.contexts() else {
            return SplitModel::weights(devices.contexts(), &config, &ends, &first, &options.split);
        };
        let (_, footprint) = GpuModel::weights(
            context,
            &config,
            &ends,
            &first,
            (options.offload, options.half_attention),
        )?;
        Ok(vec![ModelPart { context: context.clone(), layers: 0..config.layers, footprint }])
    }

    /// What loading would find wrong: tensors that are not used, the configuration, the tensors
    /// outside the layers, and one error for each layer that has one. It reads all tensors, and so
    /// takes as long as loading them does.
    pub fn problems(&self) -> impl Iterator<Item = Error> + '_ {
        let ends =
            || config(&*self.file).err().or_else(|| HostEnds::read(&*self.file, false).err());
        let layer = |layer| HostLayer::read(&*self.file, layer).err();
        let unused = || self.file.check_unused().err();
        std::iter::once_with(unused)
            .chain(std::iter::once_with(ends))
            .chain((0..self.config().layers).map(layer))
            .flatten()
    }
}

/// The configuration, if it is one that can be computed.
pub(crate) fn config(file: &dyn ModelFile) -> Result<ModelConfig> {
    let config =
        file.config().clone().checked().map_err(|what| Error::Invalid { op: "model", what })?;
    config.attention().check("model")?;
    Ok(config)
}

pub(crate) fn usable(tokenizer: Option<Result<Tokenizer>>) -> MaybeTokenizer {
    let tokenizer = tokenizer.unwrap_or_else(|| {
        Err(Error::Tokenizer { message: "the model came without one; it takes ids".into() })
    });
    tokenizer.map_err(|error| match error {
        Error::Tokenizer { message } => message,
        other => other.to_string(),
    })
}

pub(crate) fn tokenizer(tokenizer: &MaybeTokenizer) -> Result<&Tokenizer> {
    tokenizer.as_ref().map_err(|message| Error::Tokenizer { message: message.clone() })
}

/// The tokens of a text that is to be continued, and fits the context. An empty text is BOS,
/// whatever the tokenizer adds.
pub(crate) fn encode_prompt(
    tokenizer: &Tokenizer,
    config: &ModelConfig,
    prompt: &str,
) -> Result<Vec<u32>> {
    let mut ids = tokenizer.within(config.context).encode(prompt)?;
    if ids.is_empty() {
        ids.extend(config.bos);
    }
    Ok(ids)
}
