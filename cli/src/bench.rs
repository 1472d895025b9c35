//! `bitnet bench`: measures prefill and decode speed.

use crate::{
    adapters, energy, input,
    model::{self, ModelArgs, Placement, progress, with_progress},
    profile::{self, Profile},
    random::{RandomModel, Shape, prompt_of},
    say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_wgpu::{
    Context, Element,
    formats::ModelConfig,
    internals::{
        GenerateOptionsInternals as _, ModelFilesInternals as _, ModelInternals as _,
        config_from_json, files,
    },
    model::{
        BatchOptions, GenerateOptions, Model, ModelFiles, SessionOptions, Speculation,
        SpeculationCounts,
    },
    telemetry::{Clock, MemoryStats, PeakBandwidth},
};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::{
    fmt::Display,
    path::{Path, PathBuf},
    time::Instant,
};

/// Measures prefill and decode speed, of a model or of random weights
#[derive(Args)]
pub struct Bench {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    /// [default: random weights, see --shape]
    #[arg(conflicts_with_all = ["config", "shape"])]
    model: Option<PathBuf>,
    #[command(flatten)]
    how: BenchArgs,
}

/// Options of `bitnet bench` and of the example `bench_model`.
#[derive(Args)]
pub struct BenchArgs {
    /// Shape of the random weights
    #[arg(long, value_name = "SHAPE", value_enum, default_value_t = Shape::BitNet2B4T)]
    pub shape: Shape,
    /// config.json with the shape of the random weights
    #[arg(long, value_name = "FILE", conflicts_with = "shape")]
    pub config: Option<PathBuf>,
    /// Type of the KV cache [default: f16 on GPUs that have it, else f32]
    #[arg(long, value_name = "TYPE")]
    pub kv_type: Option<KvType>,
    /// Prompt lengths of prefill measurements, in tokens
    #[arg(long, value_name = "TOKENS,..", value_delimiter = ',', default_value = "128,512")]
    pub prefill: Vec<usize>,
    /// Context lengths of decode measurements, in tokens
    #[arg(long, value_name = "TOKENS,..", value_delimiter = ',', default_value = "0,256,2048")]
    pub context_lengths: Vec<usize>,
    /// Number of tokens per decode measurement
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub decode_tokens: usize,
    /// Batch sizes of batched decode measurements [default: none]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub batch_sizes: Vec<usize>,
    /// Measure n-gram speculative decoding too, and check that it gives the same tokens
    #[arg(long)]
    pub speculate: bool,
    /// Measure energy per token for three seconds after each context, if the system reports it
    #[arg(long)]
    pub energy: bool,
    /// Time prefill and decode steps kernel by kernel, and the host's work for them
    #[arg(long)]
    pub profile: bool,
    /// File for a Perfetto trace (ui.perfetto.dev) of a prompt and 8 tokens, 64 with --speculate
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub trace: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten, next_help_heading = "Device")]
    pub model: ModelArgs,
}

/// Type of the keys and values in the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum KvType {
    F16,
    F32,
}

impl Bench {
    pub fn run(self) -> Result<()> {
        run(self.model.as_deref(), &self.how)
    }
}

/// Tokens that `--cpu-offload auto` leaves room for.
const LONGEST: usize = 4096;

/// Sequences that the library decodes in one batch.
const MAX_BATCH: usize = 4096;

/// Generations before the first measurement.
const WARM_UPS: usize = 3;

/// Prompts of each length that are computed.
const PREFILLS: usize = 6;

/// Tokens that are traced. Drafts need more, since they begin once a text repeats itself.
const TRACED: usize = 8;
const TRACED_WITH_DRAFTS: usize = 64;

/// Measures a model, or random weights without a name.
pub fn run(name: Option<&Path>, args: &BenchArgs) -> Result<()> {
    args.check()?;
    let source = Source::open(name, &args.model, args.config.as_deref(), args.shape)?;
    if let Some(trace) = &args.trace {
        files::check_output(trace, 1, &source.inputs(args)?)?;
    }
    let contexts = args.model.contexts()?;
    if args.profile {
        profile::device(&contexts)?;
    }
    let model = source.load(&contexts, &args.model)?;
    let mut bench = Measurements::new(args, &contexts, model);
    bench.describe(name)?;
    bench.warm_up()?;
    bench.prefill()?;
    bench.decode()?;
    bench.speculation()?;
    bench.batches()?;
    bench.bar.finish_and_clear();
    bench.profile()?;
    bench.trace()?;
    bench.memory()?;
    if args.json {
        say(format!("{}\n", bench.object))?;
    }
    Ok(())
}

impl BenchArgs {
    fn check(&self) -> Result<()> {
        if self.decode_tokens == 0 {
            bail!("--decode-tokens 0: at least 1 is needed");
        }
        if let Some(size) = self.batch_sizes.iter().find(|size| !(1..=MAX_BATCH).contains(*size)) {
            bail!("--batch-sizes {size}: 1 to {MAX_BATCH} are accepted");
        }
        if self.prefill.contains(&0) {
            bail!("--prefill 0: a prompt has at least 1 token");
        }
        Ok(())
    }
}

/// The weights that are measured: a model's, or random ones of a shape.
pub enum Source {
    Files(ModelFiles),
    Random(Box<RandomModel>),
}

impl Source {
    /// Opens a model, or takes a shape where no model is named.
    pub fn open(
        name: Option<&Path>,
        args: &ModelArgs,
        file: Option<&Path>,
        shape: Shape,
    ) -> Result<Self> {
        let Some(name) = name else {
            args.file.none()?;
            return Ok(Self::Random(Box::new(RandomModel(config(file, shape)?))));
        };
        Ok(Self::Files(args.open(name)?))
    }

    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Files(files) => files.config(),
            Self::Random(random) => &random.0,
        }
    }

    /// Returns the files that are read, which a trace must not overwrite.
    fn inputs(&self, args: &BenchArgs) -> Result<Vec<PathBuf>> {
        match self {
            Self::Files(files) => Ok(files.paths()?),
            Self::Random(_) => Ok(args.config.iter().cloned().collect()),
        }
    }

    /// Loads the model to these devices.
    pub fn load(&self, contexts: &[Context], args: &ModelArgs) -> Result<Model> {
        let room = SessionOptions::new(1, self.config().context.min(LONGEST));
        let model = with_progress("loading", |progress| {
            let builder = match self {
                Self::Files(files) => files.builder(),
                Self::Random(random) => Model::builder_from(&**random, None),
            };
            let builder = args.configure(builder).device(model::device_of(contexts));
            builder.offload(args.offload(room)).progress(progress).build()
        });
        Ok(model?)
    }
}

/// A model that is measured, and the results.
struct Measurements<'a> {
    args: &'a BenchArgs,
    contexts: &'a [Context],
    model: Model,
    kv: Element,
    /// Peak bandwidth, measured after the warm-up.
    peak: Option<PeakBandwidth>,
    /// The results for `--json`.
    object: Value,
    bar: ProgressBar,
}

impl<'a> Measurements<'a> {
    fn new(args: &'a BenchArgs, contexts: &'a [Context], model: Model) -> Self {
        let has_f16 =
            !contexts.is_empty() && contexts.iter().all(|context| context.capabilities().f16);
        let is_f16 = args.kv_type.map_or(has_f16, |kv| kv == KvType::F16);
        let kv = if is_f16 { Element::F16 } else { Element::F32 };
        let bar = progress("measuring", "generations");
        let new = Self { args, contexts, model, kv, peak: None, object: json!({}), bar };
        new.bar.set_length(new.generations() as u64);
        new
    }

    /// Prints a line, unless results are printed as JSON.
    fn show(&self, line: impl Display) -> Result<()> {
        if !self.args.json {
            self.bar.suspend(|| say(format!("{line}\n")))?;
        }
        Ok(())
    }

    /// Returns how many generations all measurements take.
    fn generations(&self) -> usize {
        let speculations = if self.args.speculate { self.context_lengths().count() } else { 0 };
        let prompts = self.args.prefill.iter().filter(|&&prompt| prompt <= self.limit()).count();
        let batches = self.args.batch_sizes.len();
        WARM_UPS
            + PREFILLS * prompts
            + self.context_lengths().count()
            + 3 * speculations
            + 2 * batches
    }

    fn limit(&self) -> usize {
        self.model.config().context
    }

    fn options(&self, tokens: usize) -> GenerateOptions {
        let options = GenerateOptions::default().max_tokens(tokens.saturating_add(1));
        options.ignore_eos(true).kv_type(self.kv)
    }

    /// Returns the context lengths after which there is room for the tokens of a measurement.
    fn context_lengths(&self) -> impl Iterator<Item = usize> {
        let fits = |length: &usize| length.saturating_add(self.args.decode_tokens) <= self.limit();
        self.args.context_lengths.iter().copied().filter(fits)
    }

    fn gpu_bytes(&self, bytes: fn(MemoryStats) -> u64) -> u64 {
        self.contexts.iter().map(|context| bytes(context.memory_stats())).sum()
    }

    /// Shows the model and its devices.
    fn describe(&mut self, name: Option<&Path>) -> Result<()> {
        let device = Placement::of(&self.model)?;
        self.show(format!("{device}; host clock, with the transfer of results"))?;
        let random = || format!("random weights, {}", shape(self.model.config()));
        self.object = json!({
            "adapter": device.adapter,
            "shader_language": device.language(),
            "clock": Clock::Host.to_string(),
            "model": name.map_or_else(random, |name| name.to_string_lossy().into_owned()),
            "weight_bytes_per_token": self.model.weight_bytes(),
            "int8_head": self.args.model.int8_head,
            "kv_type": if self.kv == Element::F16 { "f16" } else { "f32" },
            "threads": self.args.model.threads,
        });
        let Some(context) = self.contexts.first() else { return Ok(()) };
        let bytes = self.gpu_bytes(|stats| stats.live_bytes);
        let c = context.capabilities();
        self.show(format!("{:.2} GB of GPU memory for the weights", bytes as f64 / 1e9))?;
        self.show(format!("tensor cores: {}", adapters::tensor_cores(c)))?;
        model::note_placed(&self.model)?;
        let offloaded = self.model.offloaded();
        let object = &mut self.object;
        object["offloaded"] =
            json!({ "layers": offloaded.layers, "bytes_per_token": offloaded.bytes });
        object["tensor_cores"] = (!c.tensor_cores.is_empty()).into();
        object["gpu_weight_bytes"] = bytes.into();
        object["tuned"] = (!c.tuning.is_empty()).into();
        object["driver"] = c.driver.clone().into();
        Ok(())
    }

    /// Raises the clock of an idle device, compiles kernels, and measures the peak bandwidth.
    fn warm_up(&mut self) -> Result<()> {
        for _ in 0..WARM_UPS {
            self.time(512.min(self.limit().saturating_sub(8)), 8)?;
        }
        self.peak = self.contexts.first().map(profile::peak).transpose()?.flatten();
        if let Some(peak) = &self.peak {
            self.object["peak_bytes_per_second"] = peak.bytes_per_second.into();
        }
        Ok(())
    }

    fn prefill(&mut self) -> Result<()> {
        let mut results = Vec::new();
        let limit = self.limit();
        for &prompt in &self.args.prefill {
            if prompt > limit {
                self.show(format!("prefill {prompt:5}: beyond the context of {limit} tokens"))?;
                continue;
            }
            // The first prompt of a length allocates its buffers; of five others, the median.
            let times = (0..PREFILLS).map(|_| Ok(self.time(prompt, 1)?.0));
            let mut times = times.collect::<Result<Vec<_>>>()?;
            times[1..].sort_by(f64::total_cmp);
            let seconds = times[3];
            let rate = prompt as f64 / seconds;
            self.show(format!("prefill {prompt:5}: {:8.1} ms, {rate:8.0} tok/s", seconds * 1e3))?;
            results.push(json!({
                "tokens": prompt, "seconds": seconds, "tokens_per_second": rate,
            }));
            if self.args.profile {
                let ids = prompt_of(&self.model, prompt);
                self.show(Profile::of_prompt(&self.model, &ids, self.peak.as_ref())?)?;
            }
        }
        self.object["prefill"] = results.into();
        Ok(())
    }

    fn decode(&mut self) -> Result<()> {
        let mut results = Vec::new();
        let limit = self.limit();
        let tokens = self.args.decode_tokens;
        for &length in &self.args.context_lengths {
            if length.saturating_add(tokens) > limit {
                self.show(format!(
                    "decode after {length:5}: {tokens} tokens are beyond the context of {limit}"
                ))?;
                continue;
            }
            let step = self.time(length, tokens)?.1;
            let bytes = self.model.weight_bytes() + self.kv_bytes(length + tokens / 2);
            let share = self.peak.as_ref().map(|peak| peak.share(bytes, step));
            let shown = match share {
                None => String::new(),
                Some(Some(share)) => format!(", {:.1} % of peak bandwidth", 100.0 * share),
                Some(None) => ", above peak bandwidth: read from a cache".into(),
            };
            self.show(format!(
                "decode after {length:5}: {:8.1} tok/s, {:.0} MB per token{shown}",
                1.0 / step,
                bytes as f64 / 1e6
            ))?;
            let mut result = json!({
                "context": length, "tokens_per_second": 1.0 / step, "bytes_per_token": bytes,
                "share_of_peak": share.flatten(),
            });
            if self.args.energy {
                self.energy(length, &mut result)?;
            }
            results.push(result);
        }
        self.object["decode"] = results.into();
        Ok(())
    }

    /// Adds the energy per token to the result of a context length.
    fn energy(&self, length: usize, result: &mut Value) -> Result<()> {
        let energy = energy::per_token(&self.model, self.contexts, length, self.options(0))?;
        self.show(match &energy {
            Ok(energy) => format!(
                "energy after {length:5}: {:8.3} J per token ({})",
                energy.joules, energy.source
            ),
            Err(why) => format!("energy after {length:5}: {why}"),
        })?;
        let source = energy.as_ref().map_or_else(|why| *why, |energy| &energy.source);
        result["energy_source"] = source.into();
        result["joules_per_token"] = energy.as_ref().ok().map(|energy| energy.joules).into();
        Ok(())
    }

    fn speculation(&mut self) -> Result<()> {
        if !self.args.speculate {
            return Ok(());
        }
        let mut results = Vec::new();
        let options = self.options(self.args.decode_tokens);
        let drafting = options.clone().speculate(Speculation::ngram());
        for length in self.context_lengths() {
            let plain = self.generate(length, &options)?;
            // The first time, kernels of other numbers of tokens are compiled.
            self.generate(length, &drafting)?;
            let drafted = self.generate(length, &drafting)?;
            if drafted.ids != plain.ids {
                bail!("speculation after {length}: tokens differ from those without");
            }
            let counts = drafted.speculation.context("no counts of speculation")?;
            let SpeculationCounts { passes, drafted: drafts, accepted, .. } = counts;
            let rate = 1.0 / drafted.seconds;
            let without = 1.0 / plain.seconds;
            self.show(format!(
                "decode after {length:5} with n-gram speculation: {rate:8.1} tok/s ({without:.1} without), \
                 {accepted} of {drafts} draft tokens accepted in {passes} passes"
            ))?;
            results.push(json!({
                "context": length, "tokens_per_second": rate, "drafted": drafts,
                "accepted": accepted, "passes": passes,
            }));
        }
        self.object["speculation"] = results.into();
        Ok(())
    }

    fn batches(&mut self) -> Result<()> {
        let mut results = Vec::new();
        for &size in &self.args.batch_sizes {
            // The first time, kernels of other numbers of tokens are compiled.
            self.time_batch(size)?;
            let rate = size as f64 / self.time_batch(size)?;
            self.show(format!("batch of {size:5}: {rate:8.1} tok/s in total"))?;
            results.push(json!({ "batch_size": size, "tokens_per_second": rate }));
            if self.args.profile {
                self.show(Profile::of_step(&self.model, size, 1, self.peak.as_ref())?)?;
            }
        }
        if !results.is_empty() {
            self.object["batches"] = results.into();
        }
        Ok(())
    }

    /// Profiles a decode step after the first context length.
    fn profile(&mut self) -> Result<()> {
        if !self.args.profile {
            return Ok(());
        }
        let past = self.context_lengths().next();
        let past = past.context("--profile: no context of --context-lengths fits")?;
        let rate = self.object["decode"][0]["tokens_per_second"].as_f64().unwrap_or(0.0);
        let profile = Profile::of_step(&self.model, 1, past, self.peak.as_ref())?;
        self.show(&profile)?;
        self.show(format!(
            "{:>9.1} µs  per token in total, with the transfer of its result",
            1e6 / rate
        ))?;
        profile.put(&mut self.object);
        self.object["total_us_per_token"] = (1e6 / rate).into();
        Ok(())
    }

    fn trace(&self) -> Result<()> {
        let (Some(path), Some(context)) = (&self.args.trace, self.contexts.first()) else {
            return Ok(());
        };
        let tokens = if self.args.speculate { TRACED_WITH_DRAFTS } else { TRACED };
        let fits = |prompt: &usize| prompt.saturating_add(tokens) <= self.limit();
        let prompt = self.args.prefill.iter().copied().find(fits);
        let prompt = prompt.context("--trace: no prompt of --prefill fits")?;
        let mut options = self.options(tokens);
        if self.args.speculate {
            options = options.speculate(Speculation::ngram());
        }
        let tracing = context.trace()?;
        self.generate(prompt, &options)?;
        let trace = pollster::block_on(tracing.finish())?;
        files::write(path, trace.to_string().as_bytes())?;
        self.show(format!("trace: {}", files::display(path)))
    }

    fn memory(&mut self) -> Result<()> {
        if !self.contexts.is_empty() {
            let bytes = self.gpu_bytes(|stats| stats.live_bytes + stats.cached_bytes);
            let gigabytes = bytes as f64 / 1e9;
            self.show(format!("{gigabytes:.2} GB of GPU memory in total, with pooled buffers"))?;
            self.object["gpu_bytes"] = bytes.into();
        }
        Ok(())
    }

    /// Returns the bytes of keys and values that a decode step reads after `context` tokens.
    fn kv_bytes(&self, context: usize) -> usize {
        let c = self.model.config();
        let number = if self.kv == Element::F16 { 2 } else { 4 };
        c.layers * context * 2 * c.kv_heads * c.head_dim * number
    }

    /// Returns the seconds to the first token, and per token after it.
    fn time(&self, prompt: usize, tokens: usize) -> Result<(f64, f64)> {
        let ids = prompt_of(&self.model, prompt);
        let mut generation = self.model.generate_ids(&ids, &self.options(tokens))?.into_iter();
        let start = Instant::now();
        generation.next().transpose()?;
        let first = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let generated = generation.try_fold(0, |count, token| token.map(|_| count + 1))?;
        self.bar.inc(1);
        Ok((first, start.elapsed().as_secs_f64() / f64::from(generated.max(1))))
    }

    fn generate(&self, prompt: usize, options: &GenerateOptions) -> Result<Generated> {
        let ids = prompt_of(&self.model, prompt);
        let mut generation = self.model.generate_ids(&ids, options)?;
        let mut tokens = (&mut generation).into_iter();
        let mut ids = vec![tokens.next().context("no token")??.id];
        let start = Instant::now();
        for token in tokens {
            ids.push(token?.id);
        }
        let seconds = start.elapsed().as_secs_f64() / (ids.len() - 1).max(1) as f64;
        self.bar.inc(1);
        Ok(Generated { ids, seconds, speculation: generation.speculation() })
    }

    /// Returns the seconds of a step of `size` sequences, each after one token.
    fn time_batch(&self, size: usize) -> Result<f64> {
        let vocab = self.model.config().vocab as u64;
        let prompts: Vec<Vec<u32>> =
            (0..size as u64).map(|i| vec![(i * 7919 % vocab) as u32]).collect();
        let options = self.options(self.args.decode_tokens);
        let room = options.room(size, 1, self.limit())?;
        let room = BatchOptions::new(size, room.capacity()).kv_type(self.kv);
        let batch = self.model.batch(room)?;
        let streams = prompts.iter().map(|prompt| batch.generate_ids(prompt, &options));
        let mut streams = streams.collect::<bitnet_wgpu::Result<Vec<_>>>()?;
        // The first tokens are those of the prompts.
        for stream in &mut streams {
            stream.into_iter().next().transpose()?;
        }
        let start = Instant::now();
        let mut tokens = streams.into_iter().flatten();
        let generated = tokens.try_fold(0usize, |count, token| token.map(|_| count + 1))?;
        self.bar.inc(1);
        Ok(start.elapsed().as_secs_f64() * size as f64 / generated.max(1) as f64)
    }
}

/// Tokens that follow a prompt.
struct Generated {
    ids: Vec<u32>,
    /// Seconds per token after the first.
    seconds: f64,
    speculation: Option<SpeculationCounts>,
}

/// Returns the configuration whose shape is measured: of a config.json, or built in.
pub fn config(path: Option<&Path>, shape: Shape) -> Result<ModelConfig> {
    let (name, text) = match path {
        Some(path) => (files::display(path).to_string(), input::text(path, input::MAX_CONFIG)?),
        None => ("the built-in config".into(), shape.config().to_owned()),
    };
    let json = serde_json::from_str(&text).with_context(|| name.clone())?;
    Ok(config_from_json(&json).map_err(|problem| problem.at(name))?)
}

fn shape(c: &ModelConfig) -> String {
    format!(
        "{}, {} layers × {} × {}, vocabulary {}",
        c.architecture, c.layers, c.hidden, c.intermediate, c.vocab
    )
}
