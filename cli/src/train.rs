//! `bitnet train`: trains a model on text.

use crate::{
    counted, interrupt,
    model::{Activations, bytes, chosen, experimental_features, progress},
    note, say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_train::{
    Corpus, DenseElement, LinearMode, Progress, Schedule, Score, Settings, Source, StepReport,
    Trainer, end_of_text, latest, score,
};
use bitnet_wgpu::{
    Context, ContextOptions,
    internals::files::{display, read, write},
    model::Tokenizer,
};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// Most bytes of a log that is gone on with.
const MAX_LOG: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Decline {
    Cosine,
    Constant,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EmbeddingType {
    F32,
    Bf16,
    F16,
}

/// Trains a ternary model on text, and writes it as a model directory
///
/// The model is one of bitnet, llama or qwen3, as a config.json says. Float weights are trained on
/// a GPU, and are made ternary in every step. The output directory has the model, checkpoints in
/// `checkpoints`, and a line of `log.jsonl` per step. The last windows of the text are held out:
/// the finished model is scored on them. Ctrl-C writes a checkpoint, from which --resume goes on.
#[derive(Args)]
pub struct Train {
    /// Directory with the config.json of a model, whose first weights are random
    #[arg(long, value_name = "DIR", required_unless_present = "init")]
    config: Option<PathBuf>,
    /// Model directory with float weights in safetensors, which training starts from
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    init: Option<PathBuf>,
    /// Directory with tokenizer.json [default: that of --config or --init]
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Files of .txt (a document each) or .jsonl (a document per line, as {"text": ".."}), or
    /// directories with such files
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    data: Vec<PathBuf>,
    /// Directory to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of steps
    #[arg(long, value_name = "N")]
    steps: u64,
    /// Number of windows per micro-batch
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch: usize,
    /// Number of micro-batches per step, whose gradients are added
    #[arg(long, value_name = "N", default_value_t = 1)]
    accumulate: usize,
    /// Number of tokens per window [default: 256, or the model's context if it is smaller]
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Largest learning rate of AdamW
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    lr: f32,
    /// Last learning rate of the cosine, as a share of --lr
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    final_lr: f32,
    /// Number of steps in which the learning rate grows to --lr [default: a tenth of --steps]
    #[arg(long, value_name = "STEPS")]
    warmup: Option<u64>,
    /// Learning rate after the warm-up
    #[arg(long, value_name = "SCHEDULE", default_value = "cosine")]
    schedule: Decline,
    /// Weight decay of matrices and embeddings; norms have none
    #[arg(long, value_name = "DECAY", default_value_t = 0.1)]
    weight_decay: f32,
    /// Largest norm of all gradients together
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    clip: f32,
    /// Seed of the first weights and of the order of windows
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Activation type of linear layers [default: float for qwen3, else int8]
    #[arg(long, value_name = "TYPE")]
    activations: Option<Activations>,
    /// Number of windows at the end of the text that are held out [default: 1 % of them, 1 to 64]
    #[arg(long, value_name = "WINDOWS")]
    held_out: Option<usize>,
    /// Type of embedding, LM head and norms in the model that is written
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    embedding_type: EmbeddingType,
    /// Number of steps between two checkpoints
    #[arg(long, value_name = "STEPS", default_value_t = 100)]
    save_every: u64,
    /// Number of checkpoints that are kept
    #[arg(long, value_name = "N", default_value_t = 2)]
    keep: usize,
    /// Number of steps in a row with a loss or a gradient that is not finite, after which training
    /// ends with an error
    #[arg(long, value_name = "N", default_value_t = 10)]
    max_skipped: u32,
    /// Go on from the last checkpoint in the output directory, if there is one
    #[arg(long)]
    resume: bool,
    /// Overwrite a model in the output directory
    #[arg(long)]
    force: bool,
    /// Number of steps between two lines of output
    #[arg(long, value_name = "STEPS", default_value_t = 10)]
    log_every: u64,
    /// GPU by part of its name or by its number in `bitnet adapters`
    #[arg(long, value_name = "NAME|NUMBER")]
    adapter: Option<String>,
    /// Limit of GPU memory, in bytes, or with the suffix K, M or G (2^10, 2^20, 2^30)
    /// [default: none]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory_limit: Option<u64>,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

impl Train {
    pub fn run(self) -> Result<()> {
        let source = match (&self.init, &self.config) {
            (Some(folder), _) => Source::from_weights(folder)?,
            (None, Some(folder)) => Source::from_config(folder)?,
            (None, None) => bail!("--config or --init is needed"),
        };
        let settings = self.settings(&source);
        settings.check(source.config())?;
        let parameters = source.parameters()?;
        self.check_intervals()?;
        self.check_output()?;
        let tokenizer = Tokenizer::from_directory(self.tokenizer_folder())?;
        let end = end_of_text(&tokenizer, source.config(), self.tokenizer_folder())?;
        let text = Corpus::read(&self.data, &tokenizer, end, settings.context)?;
        let held_out = self.held_out.unwrap_or_else(|| (text.windows() / 100).clamp(1, 64));
        let (text, held_out) = text.split(held_out)?;

        let windows = counted(text.windows(), "window");
        let context = self.open()?;
        let mut trainer = Trainer::new(&context, source, text, settings)?;
        self.resume(&mut trainer)?;
        if !self.json {
            say(format!(
                "{}: {:.2} M parameters, {windows} of {} tokens to train on, {} held out\n",
                context.capabilities().adapter,
                parameters as f64 / 1e6,
                trainer.settings().context,
                held_out.windows()
            ))?;
        }
        let trained = self.train(&mut trainer)?;
        trainer.export(&self.out, self.tokenizer_folder(), self.embedding_element())?;
        let progress = trainer.progress();
        // The model that is scored takes its place on the GPU.
        drop(trainer);
        let scored = score(&self.out, &context, &held_out)?;
        self.report(progress, &trained, scored, &context)
    }

    fn settings(&self, source: &Source) -> Settings {
        let config = source.config();
        let context = self.context.unwrap_or(config.context.min(256));
        let mut settings = Settings::new(self.steps, self.batch, context);
        settings.accumulation = self.accumulate;
        (settings.rate, settings.final_rate) = (self.lr, self.final_lr);
        settings.warm_up = self.warmup.unwrap_or(settings.warm_up);
        settings.schedule = match self.schedule {
            Decline::Cosine => Schedule::Cosine,
            Decline::Constant => Schedule::Constant,
        };
        (settings.decay, settings.clip) = (self.weight_decay, self.clip);
        (settings.seed, settings.most_skipped) = (self.seed, self.max_skipped);
        let quantized = self.activations.map(Activations::are_quantized);
        settings.linear = match quantized.unwrap_or(config.quantized_activations) {
            true => LinearMode::Int8,
            false => LinearMode::Float,
        };
        settings
    }

    fn tokenizer_folder(&self) -> &Path {
        let folders = [&self.tokenizer, &self.init, &self.config];
        folders.into_iter().flatten().next().map_or(Path::new("."), PathBuf::as_path)
    }

    fn checkpoints(&self) -> PathBuf {
        self.out.join("checkpoints")
    }

    fn embedding_element(&self) -> DenseElement {
        match self.embedding_type {
            EmbeddingType::F32 => DenseElement::F32,
            EmbeddingType::Bf16 => DenseElement::Bf16,
            EmbeddingType::F16 => DenseElement::F16,
        }
    }

    fn check_intervals(&self) -> Result<()> {
        let intervals = [
            ("save-every", self.save_every),
            ("log-every", self.log_every),
            ("keep", self.keep as u64),
            ("held-out", self.held_out.unwrap_or(1) as u64),
        ];
        match intervals.iter().find(|(_, interval)| *interval == 0) {
            Some((option, _)) => bail!("--{option} 0: at least 1 is needed"),
            None => Ok(()),
        }
    }

    /// Checks that nothing is overwritten without being asked to, before the work.
    fn check_output(&self) -> Result<()> {
        let out = display(&self.out).to_string();
        let real = resolved(&self.out)?;
        let models = [&self.config, &self.init, &self.tokenizer].into_iter().flatten();
        for model in models {
            if model.canonicalize().is_ok_and(|model| model == real) {
                bail!("--out {out} is a directory of the input: choose another output");
            }
        }
        // The log and the model's files would be read as text.
        for data in &self.data {
            if data.canonicalize().is_ok_and(|data| real.starts_with(data)) {
                bail!("--out {out} is in a directory of --data: choose another output");
            }
        }
        let has_checkpoint = latest(self.checkpoints())?.is_some();
        if has_checkpoint && !self.resume && !self.force {
            bail!("{out} has checkpoints: --resume goes on from the last one, --force starts anew");
        }
        let goes_on = self.resume && has_checkpoint;
        let has_model =
            ["config.json", "log.jsonl"].iter().any(|name| self.out.join(name).exists());
        if has_model && !goes_on && !self.force {
            bail!("{out} has a model or a log already (--force overwrites it)");
        }
        fs::create_dir_all(&self.out).with_context(|| format!("creating {out}"))
    }

    fn open(&self) -> Result<Context> {
        let mut options = ContextOptions::default()
            .experimental(experimental_features())
            .memory_limit(self.memory_limit);
        if let Some(adapter) = &self.adapter {
            options = options.adapter(chosen(adapter));
        }
        Ok(pollster::block_on(Context::open(options))?)
    }

    /// Goes on from the last checkpoint, or removes those of another run.
    fn resume(&self, trainer: &mut Trainer) -> Result<()> {
        let last = latest(self.checkpoints())?;
        match last {
            Some(checkpoint) if self.resume => {
                trainer.resume(&checkpoint)?;
                let (at, steps) = (trainer.progress().step, self.steps);
                if at > steps {
                    let path = display(&checkpoint);
                    bail!("--steps {steps}: {path} has more; at least {at} are needed");
                }
                note(format!("resumed from {}", display(&checkpoint)));
            }
            Some(_) => {
                let folder = self.checkpoints();
                let removed = fs::remove_dir_all(&folder);
                removed.with_context(|| format!("removing {}", display(&folder)))?;
            }
            None if self.resume => note("no checkpoint to resume from; starting anew"),
            None => {}
        }
        Ok(())
    }

    /// Takes the steps that are left.
    fn train(&self, trainer: &mut Trainer) -> Result<Trained> {
        let mut log = Log::open(&self.out.join("log.jsonl"), trainer.progress().step)?;
        let interrupted = interrupt::flag()?;
        let bar = progress("training", "steps");
        bar.set_length(trainer.settings().steps);
        bar.set_position(trainer.progress().step);
        // The position is where it is left, not what was done in this run.
        bar.reset_eta();
        let mut trained = Trained::default();
        while !trainer.is_done() {
            let start = Instant::now();
            let report = trainer.step()?;
            let took = start.elapsed();
            trained.add(&report, took, trainer.settings().tokens());
            log.add(&report, took, trainer.settings().tokens())?;
            let shown = self.show(trainer, &report, &mut trained, &bar);
            // A closed output ends the run as Ctrl-C does: with a checkpoint.
            let stopped = interrupted.load(Ordering::Relaxed) || shown.is_err();
            let is_due = report.step.is_multiple_of(self.save_every) && !report.skipped;
            if trainer.is_done() || stopped || is_due {
                let path = trainer.save(self.checkpoints(), self.keep)?;
                if stopped && !trainer.is_done() {
                    bar.finish_and_clear();
                    shown?;
                    let step = report.step;
                    bail!(
                        "interrupted after step {step}: --resume goes on from {}",
                        display(&path)
                    );
                }
            }
        }
        bar.finish_and_clear();
        // From here on, an interrupt ends the program: the checkpoint has all steps.
        interrupted.store(true, Ordering::Relaxed);
        Ok(trained)
    }

    /// Shows a step on the bar, and some of them as lines.
    fn show(
        &self,
        trainer: &Trainer,
        report: &StepReport,
        trained: &mut Trained,
        bar: &ProgressBar,
    ) -> Result<()> {
        let StepReport { step, loss, gradient_norm, rate, skipped } = *report;
        let speed = trained.since_line.rate().or(trained.all.rate()).unwrap_or_default();
        bar.set_message(format!("loss {loss:.4}, {speed:.0} tok/s"));
        bar.set_position(step);
        let is_line =
            step == 1 || step.is_multiple_of(self.log_every) || trainer.is_done() || skipped;
        if !is_line {
            return Ok(());
        }
        trained.since_line = Speed::default();
        if self.json {
            return Ok(());
        }
        let what = if skipped { "; skipped, since it is not finite" } else { "" };
        let line = format!(
            "step {step:5}: loss {loss:.4}, gradient norm {gradient_norm:.4}, learning rate {rate:.2e}, {speed:.0} tok/s{what}\n"
        );
        Ok(bar.suspend(|| say(line))?)
    }

    /// Prints how the finished model scores.
    fn report(
        &self,
        progress: Progress,
        trained: &Trained,
        Score { loss, tokens }: Score,
        context: &Context,
    ) -> Result<()> {
        let perplexity = loss.exp();
        if self.json {
            let object = json!({
                "steps": progress.step, "skipped": progress.skipped, "loss": trained.loss,
                "held_out_loss": loss, "perplexity": perplexity, "held_out_tokens": tokens,
                "tokens_per_second": trained.all.rate(), "adapter": context.capabilities().adapter,
            });
            return Ok(say(format!("{object}\n"))?);
        }
        let skipped = match progress.skipped {
            0 => String::new(),
            count => format!(", {} skipped", counted(count as usize, "step")),
        };
        Ok(say(format!(
            "{}: perplexity {perplexity:.2} (loss {loss:.4}) over {tokens} held-out tokens{skipped}\n",
            display(&self.out)
        ))?)
    }
}

/// Returns where a folder is, or would be if it were made.
fn resolved(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let existing = absolute
        .ancestors()
        .find_map(|at| Some(at.canonicalize().ok()?.join(absolute.strip_prefix(at).ok()?)));
    Ok(existing.unwrap_or(absolute))
}

/// Tokens and the time that they took.
#[derive(Clone, Copy, Default)]
struct Speed {
    tokens: usize,
    time: Duration,
}

impl Speed {
    /// Returns tokens per second.
    fn rate(self) -> Option<f64> {
        (self.tokens > 0).then(|| self.tokens as f64 / self.time.as_secs_f64().max(1e-9))
    }

    fn add(&mut self, tokens: usize, time: Duration) {
        self.tokens += tokens;
        self.time += time;
    }
}

/// What a run has done so far.
#[derive(Default)]
struct Trained {
    /// Of the last step.
    loss: Option<f64>,
    steps: u64,
    /// Without the first step, which compiles the kernels.
    all: Speed,
    since_line: Speed,
}

impl Trained {
    fn add(&mut self, report: &StepReport, took: Duration, tokens: usize) {
        if self.steps > 0 {
            self.all.add(tokens, took);
        }
        self.since_line.add(tokens, took);
        self.steps += 1;
        self.loss = Some(report.loss);
    }
}

/// One JSON object per step.
struct Log(File, PathBuf);

impl Log {
    /// Opens a log without the steps after `step`, which are computed again.
    fn open(path: &Path, step: u64) -> Result<Self> {
        let mut kept = String::new();
        if step > 0 && path.exists() {
            let lines = String::from_utf8_lossy(&read(path, MAX_LOG)?).into_owned();
            let is_before = |line: &&str| {
                let json: Option<Value> = serde_json::from_str(line).ok();
                json.and_then(|json| json["step"].as_u64()).is_some_and(|own| own <= step)
            };
            kept = lines.lines().filter(is_before).flat_map(|line| [line, "\n"]).collect();
        }
        write(path, kept.as_bytes())?;
        let file = OpenOptions::new().append(true).open(path);
        let file = file.with_context(|| format!("opening {}", display(path)))?;
        Ok(Self(file, path.to_owned()))
    }

    fn add(&mut self, report: &StepReport, took: Duration, tokens: usize) -> Result<()> {
        let StepReport { step, loss, gradient_norm, rate, skipped } = *report;
        let object = json!({
            "step": step, "loss": loss, "gradient_norm": gradient_norm, "learning_rate": rate,
            "tokens": tokens, "seconds": took.as_secs_f64(), "skipped": skipped,
        });
        writeln!(self.0, "{object}").with_context(|| format!("writing {}", display(&self.1)))
    }
}
