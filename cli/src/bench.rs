//! `bitnet bench`: times prefill and decode.

use crate::{
    adapters, energy, input,
    model::{self, ModelArgs, device, with_progress},
    profile::{self, Profile},
    random::{RandomModel, Shape, prompt_of},
    say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_wgpu::{
    Element,
    formats::ModelConfig,
    internals::files,
    model::{GenerateOptions, Model, ModelFiles, SessionOptions, Speculation, SpeculationCounts},
    telemetry::MemoryStats,
};
use clap::Args;
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// Times prefill and decode of a model, or of random weights in a model's shape
#[derive(Args)]
pub struct Bench {
    /// A model directory, a GGUF file, or a name on the Hugging Face hub
    /// [default: random weights, see --shape]
    #[arg(conflicts_with_all = ["config", "shape"])]
    model: Option<PathBuf>,
    #[command(flatten)]
    how: BenchArgs,
}

/// What `bitnet bench` and the example `bench_model` take.
#[derive(Args)]
pub struct BenchArgs {
    /// A config.json: time random weights of its shape
    #[arg(long, conflicts_with = "shape")]
    pub config: Option<PathBuf>,
    /// The shape of the random weights, without a config.json
    #[arg(long, value_enum, default_value_t = Shape::BitNet2B4T)]
    pub shape: Shape,
    /// Store keys and values in 32 bits [default: in 16 where the GPU has them]
    #[arg(long, conflicts_with = "f16_cache")]
    pub f32_cache: bool,
    /// Store keys and values in 16 bits, on the CPU too
    #[arg(long)]
    pub f16_cache: bool,
    /// Tokens to decode per measurement
    #[arg(long, default_value_t = 64)]
    pub tokens: usize,
    /// Prompt lengths for timing prefill
    #[arg(long, value_delimiter = ',', default_value = "128,512")]
    pub prefill: Vec<usize>,
    /// Context lengths after which to time decode
    #[arg(long, value_delimiter = ',', default_value = "0,256,2048")]
    pub contexts: Vec<usize>,
    /// Numbers of sequences that are decoded side by side
    #[arg(long, value_delimiter = ',')]
    pub sequences: Vec<usize>,
    /// Decode with drafts from the text itself too, and compare tokens
    #[arg(long)]
    pub speculate: bool,
    /// Decode for three seconds more after each context, and say what a token takes in energy,
    /// where the system says what the GPU does
    #[arg(long)]
    pub energy: bool,
    /// Time prompts and decoding steps (of --sequences too) kernel by kernel, and what the host
    /// does for them
    #[arg(long)]
    pub profile: bool,
    /// Write what host and GPU do for a prompt (the first of --prefill that fits) and eight tokens,
    /// or 64 with --speculate, as JSON for Perfetto (ui.perfetto.dev)
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl Bench {
    pub fn run(self) -> Result<()> {
        run(self.model.as_deref(), &self.how)
    }
}

/// Tokens that `--offload auto` leaves room for.
const LONGEST: usize = 4096;

/// Sequences that the library decodes side by side.
const MAX_SEQUENCES: usize = 4096;

/// Tokens that are traced, and with drafts, which begin once a text repeats itself.
const TRACED: usize = 8;
const TRACED_WITH_DRAFTS: usize = 64;

enum Source {
    Files(ModelFiles),
    Random(Box<RandomModel>),
}

/// Bytes of keys and values that a decoding step reads after `context` tokens.
fn cache_bytes(c: &ModelConfig, context: usize, cache: Element) -> usize {
    c.layers * context * 2 * c.kv_heads * c.head_dim * if cache == Element::F16 { 2 } else { 4 }
}

/// Seconds to the first token, and per token after it.
fn time(model: &Model, prompt: usize, tokens: usize, cache: Element) -> Result<(f64, f64)> {
    let ids = prompt_of(model, prompt);
    let options = GenerateOptions::default()
        .max_tokens(tokens.saturating_add(1))
        .ignore_eos(true)
        .cache(cache);
    let mut generation = model.generate_ids(&ids, &options)?.into_iter();
    let start = Instant::now();
    generation.next().transpose()?;
    let first = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let generated = generation.try_fold(0, |count, token| token.map(|_| count + 1))?;
    Ok((first, start.elapsed().as_secs_f64() / f64::from(generated.max(1))))
}

/// Tokens that follow a prompt, seconds a token after the first, and how drafts of the text itself
/// were.
fn speculated(
    model: &Model,
    prompt: usize,
    options: &GenerateOptions,
) -> Result<(Vec<u32>, f64, Option<SpeculationCounts>)> {
    let mut generation = model.generate_ids(&prompt_of(model, prompt), options)?.into_iter();
    let mut ids = vec![generation.next().context("no token")??.id];
    let start = Instant::now();
    for token in &mut generation {
        ids.push(token?.id);
    }
    let seconds = start.elapsed().as_secs_f64() / (ids.len() - 1).max(1) as f64;
    Ok((ids, seconds, generation.speculation()))
}

/// Seconds of a step of so many sequences side by side, each after a token.
fn time_batch(model: &Model, sequences: usize, tokens: usize, cache: Element) -> Result<f64> {
    let prompts: Vec<Vec<u32>> = (0..sequences as u64)
        .map(|i| vec![(i * 7919 % model.config().vocab as u64) as u32])
        .collect();
    let options = GenerateOptions::default()
        .max_tokens(tokens.saturating_add(1))
        .ignore_eos(true)
        .cache(cache);
    let mut tokens = model.generate_batch_ids(&prompts, &options)?.into_iter();
    // The first tokens are those of the prompts.
    for _ in 0..sequences {
        tokens.next().transpose()?;
    }
    let start = Instant::now();
    let generated = tokens.try_fold(0usize, |count, token| token.map(|_| count + 1))?;
    Ok(start.elapsed().as_secs_f64() * sequences as f64 / generated.max(1) as f64)
}

pub fn run(name: Option<&Path>, args: &BenchArgs) -> Result<()> {
    if args.tokens == 0 {
        bail!("--tokens 0: there is nothing to time");
    }
    if args.sequences.contains(&0) {
        bail!("--sequences 0: there is nothing to time");
    }
    if let Some(many) = args.sequences.iter().find(|&&sequences| sequences > MAX_SEQUENCES) {
        bail!("--sequences {many}: at most {MAX_SEQUENCES} are decoded side by side");
    }
    if args.prefill.contains(&0) {
        bail!("--prefill 0: a prompt has a token at least");
    }
    let source = match name {
        Some(name) => Source::Files(args.model.open(name)?),
        None => {
            args.model.file.none()?;
            Source::Random(Box::new(RandomModel(config(args.config.as_deref(), args.shape)?)))
        }
    };
    if let Some(trace) = &args.trace {
        files::check_output(trace, 1, &inputs(&source, args)?)?;
    }
    let contexts = args.model.contexts()?;
    let context = contexts.first();
    if args.profile {
        profile::device(&contexts)?;
    }
    let longest = match &source {
        Source::Files(files) => files.config().context,
        Source::Random(random) => random.0.context,
    };
    let offload = args.model.offload(SessionOptions::new(1, longest.min(LONGEST)));
    let model = with_progress("loading", |progress| {
        let builder = match &source {
            Source::Files(files) => files.builder(),
            Source::Random(random) => Model::builder_from(&**random, None),
        };
        let builder = args.model.configure(builder).device(model::device_of(&contexts));
        builder.offload(offload).progress(progress).build()
    });
    let model = model?;
    let usual = !contexts.is_empty() && contexts.iter().all(|context| context.capabilities().f16);
    let halves = args.f16_cache || usual && !args.f32_cache;
    let cache = if halves { Element::F16 } else { Element::F32 };
    let limit = model.config().context;

    let show = |line: String| if args.json { Ok(()) } else { say(line + "\n") };
    let (adapter, language) = device(&model)?;
    show(format!(
        "{adapter}, kernels in {language}; times by the host's clock, until results have arrived"
    ))?;
    let mut object = json!({
        "adapter": adapter, "language": language, "clock": "host",
        "model": name.map_or_else(|| format!("random weights, {}", shape(model.config())), |name| name.to_string_lossy().into_owned()),
        "weight_bytes_per_token": model.weight_bytes(), "int8_head": args.model.int8_head, "f16_cache": halves,
        "threads": args.model.threads,
    });
    let memory = |bytes: fn(MemoryStats) -> u64| {
        contexts.iter().map(|context| bytes(context.memory_stats())).sum::<u64>()
    };
    if let Some(context) = context {
        let bytes = memory(|stats| stats.live_bytes);
        show(format!("{:.2} GB of GPU memory for the weights", bytes as f64 / 1e9))?;
        let units = adapters::units(context.capabilities());
        show(format!("matrix units: {units}"))?;
        model::note_placed(&model)?;
        let offloaded = model.offloaded();
        object["offloaded"] =
            json!({ "layers": offloaded.layers, "bytes_per_token": offloaded.bytes });
        object["matrix_units"] = (!context.capabilities().matrix_units.is_empty()).into();
        object["gpu_bytes_of_weights"] = bytes.into();
        object["tuned"] = (!context.capabilities().tuning.is_empty()).into();
        object["driver"] = context.capabilities().driver.clone().into();
    }
    // Warm-up: an idle device runs at a low clock, and kernels are compiled at their first use.
    for _ in 0..3 {
        time(&model, 512.min(limit.saturating_sub(8)), 8, cache)?;
    }
    let roof = context.map(profile::roof).transpose()?.flatten();
    if let Some(roof) = &roof {
        object["roof_bytes_per_second"] = roof.bytes_per_second.into();
    }
    let mut prefills = Vec::new();
    for &prompt in &args.prefill {
        if prompt > limit {
            show(format!("prefill {prompt:5}: beyond the context of {limit}"))?;
            continue;
        }
        // The first prompt of a length allocates its buffers; of five others, the median.
        let mut times =
            (0..6).map(|_| Ok(time(&model, prompt, 1, cache)?.0)).collect::<Result<Vec<_>>>()?;
        times[1..].sort_by(f64::total_cmp);
        let (seconds, rate) = (times[3], prompt as f64 / times[3]);
        show(format!(
            "prefill {prompt:5}: {:8.1} ms, {rate:8.0} tokens per second",
            seconds * 1e3
        ))?;
        prefills.push(json!({ "tokens": prompt, "seconds": seconds, "tokens_per_second": rate }));
        if args.profile {
            show(
                Profile::of_prompt(&model, &prompt_of(&model, prompt), roof.as_ref())?.to_string(),
            )?;
        }
    }
    let mut decodes = Vec::new();
    for &length in &args.contexts {
        if length.saturating_add(args.tokens) > limit {
            show(format!(
                "decode after {length:5}: {} more tokens are beyond the context of {limit}",
                args.tokens
            ))?;
            continue;
        }
        let (_, step) = time(&model, length, args.tokens, cache)?;
        let bytes =
            model.weight_bytes() + cache_bytes(model.config(), length + args.tokens / 2, cache);
        let share = roof.as_ref().map(|roof| roof.share(bytes, step));
        let said = match share {
            None => String::new(),
            Some(Some(share)) => format!(", {:.1} % of the roof", 100.0 * share),
            Some(None) => ", above the roof: read from a cache".into(),
        };
        show(format!(
            "decode after {length:5}: {:8.1} tokens per second, {:.0} MB per token{said}",
            1.0 / step,
            bytes as f64 / 1e6
        ))?;
        let mut decode = json!({ "context": length, "tokens_per_second": 1.0 / step, "bytes_per_token": bytes, "share_of_roof": share.flatten() });
        if args.energy {
            let options = GenerateOptions::default().ignore_eos(true).cache(cache);
            let energy = energy::per_token(&model, &contexts, length, options)?;
            show(match &energy {
                Ok(energy) => format!(
                    "energy after {length:5}: {:8.3} joules a token ({})",
                    energy.joules, energy.source
                ),
                Err(why) => format!("energy after {length:5}: {why}"),
            })?;
            decode["joules_per_token"] = energy.as_ref().ok().map(|energy| energy.joules).into();
            decode["energy_source"] =
                energy.as_ref().map_or_else(|why| *why, |energy| &energy.source).into();
        }
        decodes.push(decode);
    }
    if args.speculate {
        let mut speculations = Vec::new();
        for &length in
            args.contexts.iter().filter(|&&length| length.saturating_add(args.tokens) <= limit)
        {
            let options = GenerateOptions::default()
                .max_tokens(args.tokens.saturating_add(1))
                .ignore_eos(true)
                .cache(cache);
            let (plain, plainly, _) = speculated(&model, length, &options)?;
            let options = options.speculate(Speculation::ngram());
            // The first time, kernels of other numbers of tokens are compiled.
            speculated(&model, length, &options)?;
            let (ids, seconds, counts) = speculated(&model, length, &options)?;
            let counts = counts.context("no counts")?;
            if ids != plain {
                bail!("speculation after {length}: other tokens than without");
            }
            let (rate, SpeculationCounts { passes, drafted, accepted, .. }) =
                (1.0 / seconds, counts);
            show(format!(
                "decode after {length:5} with drafts: {rate:8.1} tokens per second ({:.1} without, the same tokens), {accepted} of {drafted} accepted, {passes} passes",
                1.0 / plainly
            ))?;
            speculations
                .push(json!({ "context": length, "tokens_per_second": rate, "drafted": drafted, "accepted": accepted, "passes": passes }));
        }
        object["speculation"] = speculations.into();
    }
    let mut batches = Vec::new();
    for &sequences in &args.sequences {
        // The first time, kernels of other numbers of tokens are compiled.
        time_batch(&model, sequences, args.tokens, cache)?;
        let rate = sequences as f64 / time_batch(&model, sequences, args.tokens, cache)?;
        show(format!("{sequences:5} sequences: {rate:8.1} tokens per second in all"))?;
        batches.push(json!({ "sequences": sequences, "tokens_per_second": rate }));
        if args.profile {
            show(Profile::of_step(&model, sequences, 1, roof.as_ref())?.to_string())?;
        }
    }
    if !batches.is_empty() {
        object["batches"] = batches.into();
    }
    if args.profile {
        // The first context that was timed, for its arrivals.
        let timed = decodes.first().map(|d| {
            (
                d["context"].as_u64().unwrap_or(0) as usize,
                d["tokens_per_second"].as_f64().unwrap_or(0.0),
            )
        });
        let (past, rate) = timed.context("--profile needs a context of --contexts that fits")?;
        let profile = Profile::of_step(&model, 1, past, roof.as_ref())?;
        show(profile.to_string())?;
        show(format!("arrival  {:8.1} µs a token", 1e6 / rate))?;
        profile.put(&mut object);
        object["arrival_us_per_token"] = (1e6 / rate).into();
    }
    if let (Some(path), Some(context)) = (&args.trace, context) {
        let tokens = if args.speculate { TRACED_WITH_DRAFTS } else { TRACED };
        let prompt =
            args.prefill.iter().copied().find(|&prompt| prompt.saturating_add(tokens) <= limit);
        let prompt = prompt.context("--trace needs a prompt of --prefill that fits")?;
        let options =
            GenerateOptions::default().max_tokens(tokens + 1).ignore_eos(true).cache(cache);
        let options =
            if args.speculate { options.speculate(Speculation::ngram()) } else { options };
        let tracing = context.trace()?;
        speculated(&model, prompt, &options)?;
        let trace = pollster::block_on(tracing.finish())?;
        files::write(path, trace.to_string().as_bytes())?;
        show(format!("trace    {}", files::display(path)))?;
    }
    if context.is_some() {
        let bytes = memory(|stats| stats.live_bytes + stats.cached_bytes);
        show(format!(
            "{:.2} GB of GPU memory in all, pooled buffers included",
            bytes as f64 / 1e9
        ))?;
        object["gpu_bytes"] = bytes.into();
    }
    if args.json {
        object["prefill"] = prefills.into();
        object["decode"] = decodes.into();
        say(format!("{object}\n"))?;
    }
    Ok(())
}

/// The files that are read, none of which a trace may overwrite.
fn inputs(source: &Source, args: &BenchArgs) -> Result<Vec<PathBuf>> {
    match source {
        Source::Files(files) => Ok(files.paths()?),
        Source::Random(_) => Ok(args.config.iter().cloned().collect()),
    }
}

/// The configuration whose shape is timed: of a config.json, or built in.
pub fn config(path: Option<&Path>, shape: Shape) -> Result<ModelConfig> {
    let (name, text) = match path {
        Some(path) => (files::display(path).to_string(), input::text(path, input::MAX_CONFIG)?),
        None => ("the built-in config".into(), shape.config().to_owned()),
    };
    let json = serde_json::from_str(&text).with_context(|| name.clone())?;
    Ok(ModelConfig::from_json(&json).map_err(|problem| problem.at(name))?)
}

fn shape(c: &ModelConfig) -> String {
    format!(
        "{}, {} layers × {} × {}, vocabulary {}",
        c.architecture, c.layers, c.hidden, c.intermediate, c.vocab
    )
}
