//! Opening and loading a model as the command line says.

use crate::{hub, input, note};
use anyhow::{Error, Result, bail};
use bitnet_wgpu::{
    Adapters, Context, ContextOptions,
    device::{AdapterChoice, MslPolicy},
    formats::{I2sLayout, ReadOptions, ScaleRule},
    internals::{ModelInternals as _, files::display},
    kernel::ShaderLanguage,
    model::{
        Device, LocalTime, Message, Model, ModelBuilder, ModelFiles, Offload, SessionOptions,
        Tokenizer,
    },
    wgpu,
};
use clap::{Args, ValueEnum};
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use std::{
    fmt::{self, Write},
    path::{Path, PathBuf},
};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Language {
    Wgsl,
    Msl,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum I2s {
    X86,
    Arm,
    Rows,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Activations {
    Int8,
    Float,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum WeightScale {
    Multiply,
    Divide,
}

impl Activations {
    pub fn are_quantized(self) -> bool {
        matches!(self, Self::Int8)
    }
}

/// How a model's files are read.
#[derive(Args, Clone, Debug, Default)]
pub struct FileArgs {
    /// Quantize float weights even if the files do not say that the model was trained for it
    #[arg(long)]
    pub quantize: bool,
    /// Activation type of linear layers [default: what the files say]
    #[arg(long, value_name = "TYPE")]
    pub activations: Option<Activations>,
    /// Memory layout of I2_S tensors in a GGUF file [default: found by the weights]
    #[arg(long, value_name = "LAYOUT")]
    pub i2s_layout: Option<I2s>,
    /// What weights in a directory without quantization_config do with their stored scales
    /// [default: by the scales' size]
    #[arg(long, value_name = "RULE")]
    pub weight_scale: Option<WeightScale>,
    /// Load the model even if its files have tensors that are not used
    #[arg(long)]
    pub ignore_unused: bool,
    /// Do not score a short text after loading, which warns of models that were misread
    #[arg(long)]
    pub no_text_check: bool,
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
        count => count
            .parse()
            .map(Layers::Count)
            .map_err(|_| "expected a number of layers, or `auto`".into()),
    }
}

pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().next_back() {
        Some((end, 'K' | 'k')) => (&text[..end], 10),
        Some((end, 'M' | 'm')) => (&text[..end], 20),
        Some((end, 'G' | 'g')) => (&text[..end], 30),
        _ => (text, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a whole number of bytes, or one with K, M or G".into())
}

/// How a model is loaded, and where.
#[derive(Args, Clone, Debug, Default)]
pub struct ModelArgs {
    /// Run on the CPU
    #[arg(long, conflicts_with_all = ["gpu", "shader_language"])]
    pub cpu: bool,
    /// Run on a GPU, even if it is a software adapter [default: on the CPU if that is faster]
    #[arg(long)]
    pub gpu: bool,
    /// Number of CPU threads, from 1 to 1024 [default: number of cores]
    #[arg(long, value_name = "N", conflicts_with_all = ["gpu", "adapter", "shader_language"])]
    pub threads: Option<usize>,
    /// GPU by part of its name or by its number in `bitnet adapters`; repeat it to split the
    /// layers over several GPUs, in this order
    #[arg(long, value_name = "NAME|NUMBER", conflicts_with = "cpu")]
    pub adapter: Vec<String>,
    /// Number of layers on each --adapter [default: by its memory]
    #[arg(long, value_name = "LAYERS,LAYERS", value_delimiter = ',', requires = "adapter")]
    pub layer_split: Vec<usize>,
    /// Limit of GPU memory for the model and its work, in bytes, or with the suffix K, M or G
    /// (2^10, 2^20, 2^30) [default: none]
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with = "cpu")]
    pub memory_limit: Option<u64>,
    /// Number of layers that stay in host memory and are copied to the GPU for every token; `auto`
    /// takes as few as fit --memory-limit [default: 0]
    #[arg(long, value_name = "auto|LAYERS", value_parser = layers, conflicts_with = "cpu")]
    pub cpu_offload: Option<Layers>,
    /// Quantize the LM head (output projection) to 8 bits
    #[arg(long)]
    pub int8_head: bool,
    /// Compute the attention of prompts in f16 on tensor cores: faster, but not batch-invariant
    #[arg(long, conflicts_with_all = ["no_tensor_cores", "cpu"])]
    pub f16_attention: bool,
    /// Do not use tensor cores (cooperative matrices), which speed up prefill on Vulkan
    #[arg(long)]
    pub no_tensor_cores: bool,
    /// Directory for compiled kernels (Vulkan), which make later starts faster, and for the
    /// results of `bitnet tune` [default: none]
    #[arg(long, value_name = "DIR", conflicts_with = "cpu")]
    pub kernel_cache: Option<PathBuf>,
    /// Language that kernels are compiled from; `msl` forces MSL on any Metal GPU
    /// [default: msl on Apple GPUs since M1 and A14, else wgsl]
    #[arg(long, value_name = "LANGUAGE")]
    pub shader_language: Option<Language>,
    #[command(flatten, next_help_heading = "Model files")]
    pub file: FileArgs,
}

impl FileArgs {
    /// Checks that no option is given, for random weights.
    ///
    /// # Errors
    /// The first of these options that is given.
    pub fn none(&self) -> Result<()> {
        let given = [
            ("quantize", self.quantize),
            ("activations", self.activations.is_some()),
            ("i2s-layout", self.i2s_layout.is_some()),
            ("weight-scale", self.weight_scale.is_some()),
            ("ignore-unused", self.ignore_unused),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                bail!("--{option} needs a model's files; these weights are random")
            }
            None => Ok(()),
        }
    }

    pub fn options(&self) -> ReadOptions {
        let i2s_layout = self.i2s_layout.map(|layout| match layout {
            I2s::X86 => I2sLayout::X86,
            I2s::Arm => I2sLayout::Arm,
            I2s::Rows => I2sLayout::Rows,
        });
        let scale_rule = self.weight_scale.map(|rule| match rule {
            WeightScale::Multiply => ScaleRule::Multiply,
            WeightScale::Divide => ScaleRule::Divide,
        });
        ReadOptions::default()
            .quantize(self.quantize)
            .quantized_activations(self.activations.map(Activations::are_quantized))
            .i2s_layout(i2s_layout)
            .scale_rule(scale_rule)
    }
}

impl ModelArgs {
    /// Opens the files of a path or of a name on the hub, without reading the weights.
    pub fn open(&self, name: impl AsRef<Path>) -> Result<ModelFiles> {
        Ok(ModelFiles::open_with(resolve(name.as_ref())?, self.file.options())?)
    }

    /// Loads the model, on the CPU if that is faster, with a progress bar. With `--cpu-offload
    /// auto`, it leaves room for a session of these options.
    pub fn load(&self, files: &ModelFiles, room: SessionOptions) -> Result<Model> {
        self.load_to(&self.contexts()?, files, room)
    }

    /// Loads the model to these devices.
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

    /// Loads a draft model to a GPU, or without a context for the CPU. It is small, so none of its
    /// layers stay in host memory.
    pub fn load_draft(&self, context: Option<&Context>, files: &ModelFiles) -> Result<Model> {
        with_progress("loading", |progress| {
            let builder = self.configure(files.builder()).device(context);
            Ok(builder.split([]).progress(progress).build()?)
        })
    }

    /// Returns which layers stay in host memory, with room for a session of these options.
    pub fn offload(&self, room: SessionOptions) -> Offload {
        match self.cpu_offload {
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
            .f16_attention(self.f16_attention)
            .text_check(!self.file.no_text_check)
            .split(&*self.layer_split)
            .threads(self.threads)
    }

    /// Opens the devices; none for the CPU.
    pub fn contexts(&self) -> Result<Vec<Context>> {
        if matches!(self.cpu_offload, Some(Layers::Auto)) && self.memory_limit.is_none() {
            bail!("--cpu-offload auto needs --memory-limit BYTES");
        }
        if self.cpu {
            return Ok(Vec::new());
        }
        let experimental = if self.no_tensor_cores {
            wgpu::ExperimentalFeatures::disabled()
        } else {
            experimental_features()
        };
        let mut options = ContextOptions::default()
            .experimental(experimental)
            .kernel_cache(self.kernel_cache.clone());
        options = options
            .memory_limit(self.memory_limit)
            .offload(self.cpu_offload.is_some())
            .msl(self.msl());
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
        } else if self.gpu || self.shader_language.is_some() {
            vec![open(options)?]
        } else {
            let (context, why) = pollster::block_on(Context::preferred(options.clone()))?;
            match context {
                None => note_no_gpu(&options, &why),
                Some(_) => log::info!("device: {why}"),
            }
            if context.is_none() && (self.cpu_offload.is_some() || self.memory_limit.is_some()) {
                bail!("--cpu-offload and --memory-limit need a GPU; --gpu chooses one");
            }
            context.into_iter().collect()
        };
        if contexts.iter().any(|context| !context.capabilities().tuning.is_empty()) {
            note("kernel tuning: measured on this device");
        }
        Ok(contexts)
    }

    fn msl(&self) -> MslPolicy {
        match self.shader_language {
            Some(Language::Wgsl) => MslPolicy::Never,
            Some(Language::Msl) => MslPolicy::Always,
            None => MslPolicy::Auto,
        }
    }
}

/// Returns a line for a machine without a GPU, with what may help.
pub fn no_gpu() -> &'static str {
    match cfg!(target_vendor = "apple") {
        true => "No GPU found (RUST_LOG=info says why)",
        false => "No GPU found (install a Vulkan driver; RUST_LOG=info says why)",
    }
}

/// Returns the path of a model: `model` itself, or the downloaded copy of a model on the hub.
pub fn resolve(model: &Path) -> Result<PathBuf> {
    match model.to_str() {
        // Names on the hub have no control characters.
        Some(name) if !name.chars().any(char::is_control) => hub::resolve(name),
        _ if model.exists() => Ok(model.into()),
        _ => bail!("{}: no such file or directory", display(model)),
    }
}

/// Notes why a model runs on the CPU without being asked to.
fn note_no_gpu(options: &ContextOptions, why: &str) {
    log::info!("device: {why}");
    let adapters = pollster::block_on(Adapters::list(options)).all;
    note(match &adapters[..] {
        [] => format!("{}; using the CPU", no_gpu()),
        [adapter, ..] => {
            let name = &adapter.capabilities.adapter;
            format!("{name} is a software adapter; using the CPU (--gpu uses it)")
        }
    });
}

/// Returns the adapter that `--adapter` names.
pub fn chosen(adapter: &str) -> AdapterChoice {
    let Ok(choice) = adapter.parse::<AdapterChoice>();
    choice
}

/// Returns what computes a model: these GPUs, or without one the CPU.
pub fn device_of(contexts: &[Context]) -> Device<'_> {
    if contexts.is_empty() { Device::Cpu } else { contexts.into() }
}

/// Notes which layers stay in host memory, and which are on which of several GPUs.
pub fn note_placed(model: &Model) -> Result<()> {
    let offloaded = model.offloaded();
    let layers = model.config().layers;
    if offloaded.layers > 0 {
        note(format!(
            "{} of {layers} layers stay in host memory; {} bytes are copied per token",
            offloaded.layers, offloaded.bytes
        ));
    }
    let parts = model.parts(SessionOptions::new(1, 1))?;
    for part in parts.iter().filter(|_| parts.len() > 1) {
        note(format!(
            "layers {} to {} of {layers}: {}",
            part.layers.start + 1,
            part.layers.end,
            part.context.capabilities().adapter
        ));
    }
    Ok(())
}

/// Returns wgpu's token for the features that tensor cores need.
#[allow(unsafe_code)]
pub(crate) fn experimental_features() -> wgpu::ExperimentalFeatures {
    // SAFETY: the command line's devices run the library's kernels only, which keep to their
    // memory.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

/// Loads or writes a model with a progress bar of its layers.
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

/// Returns a progress bar, which is drawn on terminals only.
pub fn progress(what: &'static str, unit: &str) -> ProgressBar {
    let template = format!("{{msg}} {{bar:30}} {{pos}}/{{len}} {unit}{{left}}");
    let style = ProgressStyle::with_template(&template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    // Nothing is known of the rest before there is a part.
    let left = |state: &ProgressState, text: &mut dyn Write| {
        if state.pos() > 0 && state.eta().as_secs() > 0 {
            let _ = write!(text, ", {} left", HumanDuration(state.eta()));
        }
    };
    ProgressBar::new(0).with_style(style.with_key("left", left)).with_message(what)
}

/// The devices that a model runs on.
pub struct Placement {
    pub adapter: String,
    /// Language of the kernels; none on the CPU.
    language: Option<ShaderLanguage>,
}

impl Placement {
    pub fn of(model: &Model) -> Result<Self> {
        let Some(context) = model.context() else {
            return Ok(Self { adapter: "CPU".into(), language: None });
        };
        let parts = model.parts(SessionOptions::new(1, 1))?;
        let names: Vec<_> =
            parts.iter().map(|part| part.context.capabilities().adapter.clone()).collect();
        Ok(Self { adapter: names.join(" + "), language: Some(context.language()) })
    }

    /// Returns the language for `--json`.
    pub fn language(&self) -> Option<String> {
        self.language.map(|language| language.to_string())
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.adapter)?;
        self.language.map_or(Ok(()), |language| write!(f, ", {language} kernels"))
    }
}

/// How a chat becomes a prompt.
#[derive(Args, Clone, Debug, Default)]
pub struct ChatArgs {
    /// Jinja chat template that replaces the model's own, of at most 1 MiB
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Whether the model reasons before it answers, if its chat template has such a switch
    /// [default: the template's]
    #[arg(long, value_name = "SWITCH")]
    pub thinking: Option<Thinking>,
    /// Date that the chat template writes, as in 2026-07-04 or 2026-07-04T09:05:03, for prompts
    /// that are the same every day [default: now]
    #[arg(long, value_name = "DATE")]
    pub date: Option<LocalTime>,
    /// Parse names of special tokens in messages as those tokens [default: plain text]
    #[arg(long)]
    pub special_tokens_in_content: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Thinking {
    On,
    Off,
}

impl ChatArgs {
    /// Returns the tokenizer with these options.
    pub fn tokenizer(&self, tokenizer: &Tokenizer) -> Result<Tokenizer> {
        let tokenizer = match &self.chat_template {
            Some(template) => {
                tokenizer.with_chat_template(&input::text(template, input::MAX_TEMPLATE)?)
            }
            None => tokenizer.clone(),
        };
        let tokenizer = tokenizer.with_special_tokens_in_content(self.special_tokens_in_content);
        let tokenizer = match self.date {
            Some(date) => {
                if !writes_date(&tokenizer) {
                    note("--date has no effect: the chat template writes no date");
                }
                tokenizer.with_chat_time(date)
            }
            None => tokenizer,
        };
        Ok(match self.thinking {
            Some(thinking) => tokenizer.with_thinking(thinking == Thinking::On)?,
            None => tokenizer,
        })
    }

    /// Tests whether no option is given.
    pub fn is_usual(&self) -> bool {
        self.chat_template.is_none()
            && self.thinking.is_none()
            && self.date.is_none()
            && !self.special_tokens_in_content
    }

    /// Checks that no option is given where there is no chat.
    pub fn check_unused(&self) -> Result<()> {
        if !self.is_usual() {
            bail!(
                "--chat-template, --thinking, --date and --special-tokens-in-content need --chat"
            );
        }
        Ok(())
    }
}

/// Tests whether the chat template writes the date or the time. A template that refuses the test's
/// message is taken to write it.
fn writes_date(tokenizer: &Tokenizer) -> bool {
    let text = |time: &str| {
        let tokenizer = tokenizer.with_chat_time(time.parse().ok()?);
        tokenizer.chat_text(&[Message::new("user", "Hello")], true).ok()
    };
    let texts = ["2025-01-02T03:04:05", "2036-12-27T18:39:48"].map(text);
    texts[0].is_none() || texts[0] != texts[1]
}
