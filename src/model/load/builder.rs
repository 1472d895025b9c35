//! Loads a model: from which files, to which device, how.

use super::{
    files::{self, MaybeTokenizer, ModelFiles},
    model::{AutoChoice, Model},
    settings::{LoadSettings, Origin},
    text_check, unoptimized,
};
use crate::{
    error::{Error, ErrorKind, Result},
    formats::{FormatError, ModelFile},
    gpu::{context::Context, device::context_options::ContextOptions},
    memory::Footprint,
    model::{
        engine::{
            device::Device,
            gpu::{GpuModel, SplitModel},
            interface::ModelPart,
            layers::{HostEnds, HostLayer},
            offload::Offload,
        },
        tokenizer::text::Tokenizer,
    },
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Options with which a model is loaded: [`Model::builder`], [`ModelFiles::builder`].
///
/// ```
/// use bitnet_wgpu::model::Model;
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let model = Model::builder("assets/tales-22m").cpu().int8_head(true).threads(2).build()?;
/// assert!(model.context().is_none());
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct ModelBuilder<'a> {
    pub(super) source: Source<'a>,
    device: Device<'a>,
    pub(super) settings: LoadSettings,
    pub(super) progress: Option<&'a mut dyn FnMut(usize, usize)>,
}

/// Where weights come from.
pub(super) enum Source<'a> {
    Path(PathBuf),
    Files(&'a ModelFiles),
    Weights(&'a dyn ModelFile, MaybeTokenizer),
}

impl Source<'_> {
    /// Calls `use_files` with the weights, the tokenizer and the files they are from.
    pub(super) fn with<T>(
        &self,
        use_files: impl FnOnce(&dyn ModelFile, &MaybeTokenizer, Option<&ModelFiles>) -> Result<T>,
    ) -> Result<T> {
        let opened;
        let files = match self {
            Self::Path(path) => {
                opened = ModelFiles::open(path)?;
                &opened
            }
            Self::Files(files) => *files,
            Self::Weights(file, tokenizer) => return use_files(*file, tokenizer, None),
        };
        use_files(&*files.file, &files.tokenizer, Some(files))
    }
}

impl<'a> ModelBuilder<'a> {
    pub(super) fn new(source: Source<'a>) -> Self {
        Self {
            source,
            device: Device::default(),
            settings: LoadSettings::default(),
            progress: None,
        }
    }

    /// Sets what computes the model. The default is the GPU if it is faster than the CPU:
    /// [`Device::Auto`].
    pub fn device(self, device: impl Into<Device<'a>>) -> Self {
        Self { device: device.into(), ..self }
    }

    /// Has a GPU compute the model, also a software one: [`Device::Gpu`]. Without a GPU,
    /// [`ModelBuilder::build`] returns an error.
    pub fn gpu(self) -> Self {
        self.device(Device::Gpu(ContextOptions::default()))
    }

    /// Has the CPU compute the model: [`Device::Cpu`].
    pub fn cpu(self) -> Self {
        self.device(Device::Cpu)
    }

    /// Quantizes the LM head (also the embedding, if it is the LM head) to 8 bits with a scale per
    /// row. That is half the bytes, and on a large vocabulary most of a token's time. Otherwise,
    /// and if it is ternary, the LM head stays as it is stored.
    pub fn int8_head(mut self, int8_head: bool) -> Self {
        self.settings.int8_head = int8_head;
        self
    }

    /// Computes the attention of prompts on a GPU's tensor cores, with queries and weights in f16.
    /// Long prompts take less time. The last bits of logits then depend on the prefill chunks, in a
    /// batch also on other sequences.
    /// [`Attention::f16`](crate::transformer::Attention::f16) says
    /// where it applies; elsewhere nothing changes.
    pub fn f16_attention(mut self, f16_attention: bool) -> Self {
        self.settings.f16_attention = f16_attention;
        self
    }

    /// Loads a model even if its files have tensors that are not used, for example of more layers
    /// than its configuration has. The default is an error.
    pub fn ignore_unused(mut self, ignore_unused: bool) -> Self {
        self.settings.ignore_unused = ignore_unused;
        self
    }

    /// Sets whether the model scores a short English text after it is loaded, and logs a warning if
    /// the result is noise: its files are then damaged, or read in the wrong way. The default is
    /// `true`. It takes as long as a prompt of 24 tokens, and nothing where no logger takes
    /// warnings. Models without a tokenizer and models for embeddings are not checked.
    pub fn text_check(mut self, text_check: bool) -> Self {
        self.settings.no_text_check = !text_check;
        self
    }

    /// Keeps layers in host memory, for a model that is larger than the context's memory limit.
    pub fn offload(mut self, offload: Offload) -> Self {
        self.settings.offload = offload;
        self
    }

    /// Sets the number of layers that each of several contexts gets, in their order: see
    /// [`Device`]. By default, or if it is empty, layers are shared in proportion to the memory
    /// that the contexts have left, or equally if that of one is not known.
    pub fn split(mut self, split: impl Into<Vec<usize>>) -> Self {
        self.settings.split = split.into();
        self
    }

    /// Sets the number of threads that a model on the CPU computes on, from 1 to 1024, which are
    /// its own. By default, all models share one pool of as many threads as there are cores, or as
    /// `RAYON_NUM_THREADS` says. Results are bit-identical on any number. It changes nothing on a
    /// GPU, nor for reading files.
    pub fn threads(mut self, threads: impl Into<Option<usize>>) -> Self {
        self.settings.threads = threads.into();
        self
    }

    /// Calls `progress` with the number of layers that are loaded, and of all layers.
    pub fn progress(self, progress: &'a mut dyn FnMut(usize, usize)) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Loads the model. Waits for the device: in async code, await [`Context::preferred`] or
    /// [`Context::open`] and set [`ModelBuilder::device`](Self::device()).
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`] for the files; [`Error::Unsupported`] for a model that is
    /// not supported, or of which only a part would be used; [`Error::TooLarge`] for a tensor that
    /// the device cannot bind; [`Error::MemoryLimit`] for weights that do not fit a limited
    /// context, before any is uploaded. [`Error::Invalid`] for no context, one device twice, more
    /// devices than layers, a [`split`](Self::split) that does not give each context layers and the
    /// model all of its own, more offloaded layers than there are, layers with other groups of
    /// scales, which cannot be offloaded, or layers that are split and offloaded.
    /// [`Error::DeviceUnsupported`] for offloaded layers on a device without
    /// `MAPPABLE_PRIMARY_BUFFERS`. With [`Device::Auto`], errors of the GPU are none.
    pub fn build(self) -> Result<Model> {
        let Self { source, device, settings, progress } = self;
        unoptimized::warn();
        let model = Self::load(&source, device, &settings, progress)?;
        if !settings.no_text_check {
            text_check::warn_of_noise(&model, model.path());
        }
        Ok(model)
    }

    fn load(
        source: &Source<'_>,
        device: Device<'_>,
        settings: &LoadSettings,
        mut progress: Option<&mut dyn FnMut(usize, usize)>,
    ) -> Result<Model> {
        source.with(|file, tokenizer, files| {
            let origin = files.map(|files| Origin {
                path: files.path.clone(),
                read: files.read,
                settings: settings.clone(),
            });
            let origin = origin.map(Arc::new);
            let mut report = |done, all| {
                if let Some(progress) = &mut progress {
                    progress(done, all);
                }
            };
            let mut load = |contexts: &[Context]| -> Result<Model> {
                let mut model =
                    Model::new(contexts, file, tokenizer.clone(), settings, &mut report)?;
                model.origin = origin.clone();
                Ok(model)
            };
            let auto = matches!(device, Device::Auto(_));
            let loaded = open(device)
                .and_then(|(contexts, reason)| load(&contexts).map(|model| (model, reason)));
            let (mut model, reason, error) = match loaded {
                Err(error) if auto && falls_back(&error) => {
                    let reason = format!("the CPU, because the GPU failed: {error}");
                    log::warn!("computing on {reason}");
                    (load(&[])?, Some(reason), Some(error))
                }
                loaded => {
                    let (model, reason) = loaded?;
                    reason.iter().for_each(|reason| log::info!("computing on {reason}"));
                    (model, reason, None)
                }
            };
            model.auto = reason.map(|reason| Arc::new(AutoChoice { reason, error }));
            Ok(model)
        })
    }

    /// Returns the GPU memory that the weights will need, and the host memory of offloaded layers.
    /// It reads the tensors outside the layers and those of the first layer of each kind, as large as
    /// which the others are taken to be. [`Device::Auto`] and [`Device::Gpu`] open the device.
    ///
    /// # Errors
    /// As [`ModelBuilder::build`].
    pub fn footprint(&self) -> Result<Footprint> {
        Ok(ModelPart::total(&self.parts()?))
    }

    /// Returns [`ModelBuilder::footprint`] for each device, with the layers that it will have;
    /// nothing for the CPU.
    ///
    /// # Errors
    /// As [`ModelBuilder::build`].
    pub(crate) fn parts(&self) -> Result<Vec<ModelPart>> {
        self.source.with(|file, _, _| {
            let (contexts, _) = open(self.device.clone())?;
            let LoadSettings { int8_head, f16_attention, offload, split, .. } = &self.settings;
            let (ends, config) = (HostEnds::read(file, *int8_head)?, files::config(file)?);
            self.settings.check(&contexts, config.layers)?;
            let kinds = HostLayer::kinds(file, &config)?;
            let [context] = &contexts[..] else {
                return SplitModel::weights(&contexts, &config, &ends, &kinds, split);
            };
            let how = (*offload, *f16_attention);
            let (_, footprint) = GpuModel::weights(context, &config, &ends, &kinds, how)?;
            Ok(vec![ModelPart { context: context.clone(), layers: 0..config.layers, footprint }])
        })
    }
}

/// Opens a device. Returns its contexts, none for the CPU, and why [`Device::Auto`] took it.
fn open(device: Device<'_>) -> Result<(Vec<Context>, Option<String>)> {
    match device {
        Device::Auto(options) => {
            let (context, reason) = pollster::block_on(Context::preferred(options))?;
            Ok((context.into_iter().collect(), Some(reason)))
        }
        Device::Gpu(options) => Ok((vec![pollster::block_on(Context::open(options))?], None)),
        Device::Cpu => Ok((Vec::new(), None)),
        Device::Contexts([]) => Err(Error::Invalid {
            op: "split",
            what: "no context; Device::Cpu computes without one".into(),
        }),
        Device::Contexts(contexts) => Ok((contexts.to_vec(), None)),
    }
}

/// Returns whether the CPU takes the place of a GPU with this error.
fn falls_back(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NoDevice
            | ErrorKind::OutOfMemory
            | ErrorKind::Unsupported
            | ErrorKind::Lost
            | ErrorKind::Shader
    ) || matches!(error, Error::Gpu { .. })
}

impl ModelFiles {
    /// Returns a builder that loads the model from these files.
    pub fn builder(&self) -> ModelBuilder<'_> {
        ModelBuilder::new(Source::Files(self))
    }
}

impl Model {
    /// Loads a model to the GPU if it is faster than the CPU: `Model::builder(path).build()`.
    ///
    /// # Errors
    /// As [`ModelBuilder::build`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).build()
    }

    /// Returns a builder that loads a model directory, a GGUF file or a prepacked model file. To
    /// set how files are read, or to check options before weights are read, open [`ModelFiles`].
    ///
    /// ```no_run
    /// use bitnet_wgpu::{ContextOptions, model::{Device, Model}};
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// let limited = ContextOptions::default().memory_limit(2 << 30);
    /// let model = Model::builder("path/to/a/model").device(Device::Auto(limited)).build()?;
    /// println!("computing on {}", model.auto_reason().unwrap_or_default());
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder<'a>(path: impl AsRef<Path>) -> ModelBuilder<'a> {
        ModelBuilder::new(Source::Path(path.as_ref().to_owned()))
    }

    /// Returns a builder that loads weights from a source of the app's own.
    pub fn builder_from(file: &dyn ModelFile, tokenizer: Option<Tokenizer>) -> ModelBuilder<'_> {
        ModelBuilder::new(Source::Weights(file, files::usable(tokenizer.map(Ok))))
    }

    /// Loads the model again from its files, with the options with which it was loaded, for example
    /// to another context after its device was lost ([`Context::recover`]). A
    /// [`split`](ModelBuilder::split) is kept for as many contexts. Sessions and batches of this
    /// model stay with it. Their work continues in new ones: a text with
    /// [`GenerateOptions::resumed`](crate::model::GenerateOptions::resumed()), a session from
    /// [`Session::tokens`](crate::model::Session::tokens).
    ///
    /// ```no_run
    /// # async fn again(model: bitnet_wgpu::model::Model, session: bitnet_wgpu::model::Session) -> bitnet_wgpu::Result<()> {
    /// let context = match model.context() {
    ///     Some(lost) => Some(lost.recover().await?),
    ///     None => None, // it is on the CPU
    /// };
    /// let model = model.reload(context.as_ref())?;
    /// let mut again = model.session(session.options())?;
    /// again.prefill(0, session.tokens(0)).await?; // the same text, on the new device
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ModelBuilder::build`]; [`Error::Invalid`] for a model of [`Model::builder_from`];
    /// [`Error::Format`] for files that changed to another model.
    pub fn reload<'d>(&self, device: impl Into<Device<'d>>) -> Result<Self> {
        let Some(origin) = &self.origin else {
            let what = "the model was not loaded from a path: build it again";
            return Err(Error::Invalid { op: "reload", what: what.into() });
        };
        let device = device.into();
        let count = match &device {
            Device::Contexts(contexts) => contexts.len(),
            Device::Gpu(_) => 1,
            Device::Auto(_) | Device::Cpu => 0,
        };
        let files = ModelFiles::open_with(&origin.path, origin.read)?;
        let mut builder = files.builder().device(device);
        builder.settings = LoadSettings { no_text_check: true, ..origin.settings.on(count) };
        let model = builder.build()?;
        match model.is_same(self) {
            true => Ok(model),
            false => {
                Err(FormatError::from("is another model than the one that was loaded")
                    .at(&origin.path))
            }
        }
    }
}
