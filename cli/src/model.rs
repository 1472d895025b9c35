//! Opening and loading a model as the command line says.

use crate::{hub, input, note};
use anyhow::{Error, Result, bail};
use bitnet_wgpu::{
    Context, ContextOptions,
    device::{AdapterChoice, MslPolicy},
    formats::{I2sLayout, ReadOptions},
    internals::files::display,
    model::{Device, Model, ModelBuilder, ModelFiles, Offload, SessionOptions, Tokenizer},
    wgpu,
};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Language {
    Wgsl,
    Msl,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum I2s {
    #[default]
    X86,
    Arm,
    Rows,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Activations {
    Int8,
    Floats,
}

impl Activations {
    pub fn are_quantized(self) -> bool {
        matches!(self, Self::Int8)
    }
}

/// How a model's files are read.
#[derive(Args, Clone, Debug, Default)]
pub struct FileArgs {
    /// Quantise float weights, though nothing says that the model was trained for it
    #[arg(long)]
    pub quantize: bool,
    /// How linear layers take their activations, whatever the files say
    #[arg(long)]
    pub activations: Option<Activations>,
    /// How I2_S tensors of a GGUF file lie
    #[arg(long, default_value = "x86")]
    pub i2s: I2s,
    /// Load the model though its files have tensors that are not used
    #[arg(long)]
    pub ignore_unused: bool,
}

/// How many layers stay in host memory.
#[derive(Clone, Copy, Debug)]
pub enum Layers {
    Auto,
    Count(usize),
}

fn layers(text: &str) -> Result<Layers, String> {
    match text {
        "auto" => Ok(Layers::Auto),
        count => {
            count.parse().map(Layers::Count).map_err(|_| "a number of layers, or `auto`".into())
        }
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().next_back() {
        Some((end, 'K' | 'k')) => (&text[..end], 10),
        Some((end, 'M' | 'm')) => (&text[..end], 20),
        Some((end, 'G' | 'g')) => (&text[..end], 30),
        _ => (text, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "a whole number of bytes, with K, M or G perhaps".into())
}

/// How a model is loaded, and where.
#[derive(Args, Clone, Debug, Default)]
pub struct ModelArgs {
    /// Language that kernels are compiled from; `msl` forces MSL on any GPU under Metal
    /// [default: msl on Apple GPUs since M1 and A14, elsewhere wgsl]
    #[arg(long)]
    pub language: Option<Language>,
    /// Compute on the CPU
    #[arg(long, conflicts_with_all = ["gpu", "language"])]
    pub cpu: bool,
    /// Compute on so many threads, where it is on the CPU [default: as many as there are cores]
    #[arg(long, value_name = "N", conflicts_with_all = ["gpu", "adapter", "language"])]
    pub threads: Option<usize>,
    /// Compute on the GPU, even a software one, which is slower than the CPU
    #[arg(long)]
    pub gpu: bool,
    /// Compute on this GPU: a part of its name, or its number in `bitnet adapters`; given again,
    /// the model's layers are split over these GPUs, in their order
    #[arg(long, value_name = "NAME|NUMBER", conflicts_with = "cpu")]
    pub adapter: Vec<String>,
    /// How many layers each --adapter gets [default: by its memory]
    #[arg(long, value_name = "LAYERS,LAYERS", value_delimiter = ',', requires = "adapter")]
    pub split: Vec<usize>,
    /// Leave out the GPU's matrix units, which make prompts faster on Vulkan
    #[arg(long)]
    pub no_matrix_units: bool,
    /// Compute the attention of prompts on them too, in 16 bits: faster, but logits differ in their
    /// last bits by how a prompt is cut
    #[arg(long, conflicts_with_all = ["no_matrix_units", "cpu"])]
    pub half_attention: bool,
    /// Keep compiled kernels in this folder, and take them from there (Vulkan): the next start is
    /// sooner; and choose kernels by what the example `tune` measured
    #[arg(long, value_name = "DIR", conflicts_with = "cpu")]
    pub cache: Option<PathBuf>,
    /// The most GPU memory that the model and its work may take: bytes, or with K, M or G for 2^10,
    /// 2^20 or 2^30 of them
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with = "cpu")]
    pub memory_limit: Option<u64>,
    /// Keep so many layers in host memory and copy them to the GPU as they are used: slower, for
    /// models that are too large; `auto`: as few as --memory-limit takes
    #[arg(long, value_name = "auto|LAYERS", value_parser = layers, conflicts_with = "cpu")]
    pub offload: Option<Layers>,
    /// Keep the head in 8 bits
    #[arg(long)]
    pub int8_head: bool,
    #[command(flatten)]
    pub file: FileArgs,
}

impl FileArgs {
    /// For random weights: what says how files are read is for nothing.
    ///
    /// # Errors
    /// The first of these options that is given.
    pub fn none(&self) -> Result<()> {
        let given = [
            ("quantize", self.quantize),
            ("activations", self.activations.is_some()),
            ("i2s", !matches!(self.i2s, I2s::X86)),
            ("ignore-unused", self.ignore_unused),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => bail!("--{option} is for a model's files, and there are none"),
            None => Ok(()),
        }
    }

    pub fn options(&self) -> ReadOptions {
        let i2s_layout = match self.i2s {
            I2s::X86 => I2sLayout::X86,
            I2s::Arm => I2sLayout::Arm,
            I2s::Rows => I2sLayout::Rows,
        };
        let quantized = self.activations.map(Activations::are_quantized);
        let options = ReadOptions::default().quantize(self.quantize).i2s_layout(i2s_layout);
        options.quantized_activations(quantized)
    }
}

impl ModelArgs {
    /// Opens the model's files, from the hub where `name` is a name there. Its weights are not read
    /// yet.
    pub fn open(&self, name: impl AsRef<Path>) -> Result<ModelFiles> {
        Ok(ModelFiles::open_with(resolve(name.as_ref())?, self.file.options())?)
    }

    /// Loads the model, for the CPU where that is faster, with a progress bar for those that take
    /// their time. With `--offload auto`, it leaves room for such a session.
    pub fn load(&self, files: &ModelFiles, room: SessionOptions) -> Result<Model> {
        self.load_to(&self.contexts()?, files, room)
    }

    /// The same to these devices.
    pub fn load_to(
        &self,
        contexts: &[Context],
        files: &ModelFiles,
        room: SessionOptions,
    ) -> Result<Model> {
        let offload = self.offload(room);
        let load = |progress: &mut dyn FnMut(usize, usize)| {
            let builder = self.configure(files.builder()).device(device_of(contexts));
            builder.offload(offload).progress(progress).build()
        };
        let model = with_progress("loading", load)?;
        note_placed(&model)?;
        Ok(model)
    }

    /// Loads a model that drafts, to a GPU, or for the CPU without a context. All of it is there:
    /// it is small.
    pub fn load_draft(&self, context: Option<&Context>, files: &ModelFiles) -> Result<Model> {
        with_progress("loading", |progress| {
            let builder = self.configure(files.builder()).device(context);
            Ok(builder.split([]).progress(progress).build()?)
        })
    }

    /// Which layers stay in host memory, with room for such a session.
    pub fn offload(&self, room: SessionOptions) -> Offload {
        match self.offload {
            None => Offload::None,
            Some(Layers::Count(count)) => Offload::Layers(count),
            Some(Layers::Auto) => Offload::Auto(room),
        }
    }

    /// Sets what these arguments say of how a model is loaded.
    pub fn configure<'a>(&self, builder: ModelBuilder<'a>) -> ModelBuilder<'a> {
        builder
            .ignore_unused(self.file.ignore_unused)
            .int8_head(self.int8_head)
            .f16_attention(self.half_attention)
            .split(&*self.split)
            .threads(self.threads)
    }

    /// The devices; none for the CPU.
    pub fn contexts(&self) -> Result<Vec<Context>> {
        if matches!(self.offload, Some(Layers::Auto)) && self.memory_limit.is_none() {
            bail!("--offload auto takes as few layers as --memory-limit BYTES says");
        }
        if self.cpu {
            return Ok(Vec::new());
        }
        let experimental = if self.no_matrix_units {
            wgpu::ExperimentalFeatures::disabled()
        } else {
            matrix_units()
        };
        let mut options =
            ContextOptions::default().experimental(experimental).cache(self.cache.clone());
        options =
            options.memory_limit(self.memory_limit).offload(self.offload.is_some()).msl(self.msl());
        if let [adapter] = &self.adapter[..] {
            options = options.adapter(chosen(adapter));
        }
        let open =
            |options: ContextOptions| Ok::<_, Error>(pollster::block_on(Context::open(options))?);
        let contexts = if self.adapter.len() > 1 {
            self.adapter
                .iter()
                .map(|adapter| open(options.clone().adapter(chosen(adapter))))
                .collect::<Result<_>>()?
        } else if self.gpu || self.language.is_some() {
            vec![open(options)?]
        } else {
            let (context, why) = pollster::block_on(Context::preferred(options))?;
            note(format!("computing on {why}"));
            if context.is_none() && (self.offload.is_some() || self.memory_limit.is_some()) {
                bail!("--offload and --memory-limit are for a GPU: --gpu takes one");
            }
            context.into_iter().collect()
        };
        if contexts.iter().any(|context| !context.capabilities().tuning.is_empty()) {
            note("kernels are chosen by what was measured on this device");
        }
        Ok(contexts)
    }

    fn msl(&self) -> MslPolicy {
        match self.language {
            Some(Language::Wgsl) => MslPolicy::Never,
            Some(Language::Msl) => MslPolicy::Always,
            None => MslPolicy::Auto,
        }
    }
}

/// The path of a model: a path as it is, which need not be UTF-8, or that of a copy of a model on
/// the hub.
pub fn resolve(model: &Path) -> Result<PathBuf> {
    match model.to_str() {
        // Names on the hub have no control characters.
        Some(name) if !name.chars().any(char::is_control) => hub::resolve(name),
        _ if model.exists() => Ok(model.into()),
        _ => bail!("{}: there is no such file or directory", display(model)),
    }
}

/// The adapter that `--adapter` names.
pub fn chosen(adapter: &str) -> AdapterChoice {
    adapter.parse().map_or_else(|_| adapter.into(), AdapterChoice::Index)
}

/// Returns what computes a model: these GPUs, or without one the CPU.
pub fn device_of(contexts: &[Context]) -> Device<'_> {
    if contexts.is_empty() { Device::Cpu } else { contexts.into() }
}

/// Says what of a model is not in GPU memory, and which layers are on which of several GPUs.
pub fn note_placed(model: &Model) -> Result<()> {
    let (offloaded, layers) = (model.offloaded(), model.config().layers);
    if offloaded.layers > 0 {
        note(format!(
            "{} of {layers} layers stay in host memory: {} bytes are copied for every token",
            offloaded.layers, offloaded.bytes
        ));
    }
    let parts = model.parts(SessionOptions::new(1, 1))?;
    for part in parts.iter().filter(|_| parts.len() > 1) {
        note(format!(
            "layers {} to {} of {layers} on {}",
            part.layers.start + 1,
            part.layers.end,
            part.context.capabilities().adapter
        ));
    }
    Ok(())
}

/// wgpu's token for the features that matrix units are.
#[allow(unsafe_code)]
pub(crate) fn matrix_units() -> wgpu::ExperimentalFeatures {
    // SAFETY: the command line's devices run the library's kernels only, which keep to their
    // memory.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

/// Loads or writes a model with a bar of its layers.
pub fn with_progress<T>(
    what: &'static str,
    load: impl FnOnce(&mut dyn FnMut(usize, usize)) -> T,
) -> T {
    let bar = progress(what, "layers");
    let loaded = load(&mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    loaded
}

/// A bar on the terminal; without one, nothing is drawn.
pub fn progress(what: &'static str, unit: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(&format!("{{msg}} {{bar:30}} {{pos}}/{{len}} {unit}"));
    ProgressBar::new(0)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what)
}

/// The names of a model's devices, and the language of their kernels.
pub fn device(model: &Model) -> Result<(String, String)> {
    let parts = model.parts(SessionOptions::new(1, 1))?;
    let names: Vec<_> =
        parts.iter().map(|part| part.context.capabilities().adapter.clone()).collect();
    Ok(match model.context() {
        Some(context) => (names.join(" + "), format!("{:?}", context.language()).to_lowercase()),
        None => ("CPU".into(), "rust".into()),
    })
}

/// How conversations are written.
#[derive(Args, Clone, Debug, Default)]
pub struct ChatArgs {
    /// A chat template, in Jinja, to use instead of the model's own: a file or a pipe of at most 1
    /// MiB
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Whether the model reasons before it answers, where its chat template can say so
    /// [default: as the template has it]
    #[arg(long)]
    pub thinking: Option<Thinking>,
    /// Let names of special tokens within a message become those tokens [default: they are text]
    #[arg(long)]
    pub special_tokens_in_content: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Thinking {
    On,
    Off,
}

impl ChatArgs {
    /// The tokenizer, told so.
    pub fn tokenizer(&self, tokenizer: &Tokenizer) -> Result<Tokenizer> {
        let tokenizer = match &self.chat_template {
            Some(template) => {
                tokenizer.with_chat_template(&input::text(template, input::MAX_TEMPLATE)?)
            }
            None => tokenizer.clone(),
        };
        let tokenizer = tokenizer.with_special_tokens_in_content(self.special_tokens_in_content);
        Ok(match self.thinking {
            Some(thinking) => tokenizer.with_thinking(thinking == Thinking::On)?,
            None => tokenizer,
        })
    }

    /// Is there nothing to tell?
    pub fn is_usual(&self) -> bool {
        self.chat_template.is_none() && self.thinking.is_none() && !self.special_tokens_in_content
    }
}
