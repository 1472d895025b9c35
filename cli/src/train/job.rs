//! A run of a training command.

use super::{
    log::{Log, Speed, Trained},
    options::RunArgs,
    sample::Prompt,
};
use crate::{
    counted, interrupt,
    model::{chosen, experimental_features, progress},
    note, printable, say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_train::{
    Corpus, FolderLock, Lora, Progress, Score, Settings, Source, StepReport, Teacher, Trainer,
    Writing, end_of_text, latest, score, write_text,
};
use bitnet_wgpu::{
    Context, ContextOptions,
    internals::files::display,
    model::{LocalTime, Tokenizer},
};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Instant,
};

/// The date that chat templates are given.
const DATE: &str = "2024-07-26";

/// A run of a training command.
pub struct Job<'a> {
    pub args: &'a RunArgs,
    /// Text, unless a teacher writes it.
    pub data: &'a [PathBuf],
    pub rate: f32,
    pub decay: f32,
    pub lora: Option<Lora>,
    /// Whether a model is written, and not adapters.
    pub merge: bool,
    /// Directories that are read.
    pub inputs: Vec<PathBuf>,
    /// The directory of the tokenizer.
    pub tokenizer: PathBuf,
    /// Whether the loss before the run is of interest.
    pub is_finetune: bool,
    /// Other text that is scored before and after.
    pub other: &'a [PathBuf],
}

/// A teacher, and how much it writes where no text is given.
pub struct Tuition<'a> {
    pub teacher: Teacher,
    pub folder: &'a Path,
    pub tokens: usize,
}

/// Text that is scored, and its losses.
struct Scored {
    name: &'static str,
    text: Corpus,
    /// By the teacher, if there is one.
    teacher: Option<f64>,
    /// Before the run, if that is known.
    before: Option<f64>,
    /// By the trained model.
    trained: f64,
    /// By the model that was written.
    written: Option<Score>,
}

impl Job<'_> {
    pub fn run(&self, source: Source, tuition: Option<Tuition<'_>>) -> Result<()> {
        let settings = self.settings(&source);
        settings.check(source.config())?;
        let parameters = source.parameters()?;
        self.check_intervals()?;
        self.check_inputs()?;
        let _lock = FolderLock::new(&self.args.out)?;
        self.check_output()?;
        // Templates that write the date would give a resumed run another text.
        let date = DATE.parse::<LocalTime>().context("the date of templates")?;
        let tokenizer = Tokenizer::from_directory(&self.tokenizer)?.with_chat_time(date);
        let end = end_of_text(&tokenizer, source.config(), &self.tokenizer)?;
        let prompt = self.args.sample.as_ref();
        let prompt = prompt.map(|text| Prompt::new(text, &tokenizer, end, settings.context));
        let prompt = prompt.transpose()?;
        let (context, written) = self.write_data(tuition.as_ref(), settings.context)?;
        let data = if self.data.is_empty() { &written } else { self.data };
        let text = Corpus::read(data, &tokenizer, end, settings.context)?;
        note_cut(&text);
        let held_out = self.args.held_out.unwrap_or_else(|| (text.windows() / 100).clamp(1, 64));
        let (text, held_out) = text.split(held_out)?;
        let mut scored = vec![Scored::new("held-out text", held_out)];
        if !self.other.is_empty() {
            let other = Corpus::read(self.other, &tokenizer, end, settings.context)
                .context("reading --eval-data")?;
            note_cut(&other);
            scored.push(Scored::new("other text", other));
        }

        let windows = counted(text.windows(), "window");
        let context = context.map_or_else(|| self.open(), Ok)?;
        let mut trainer = match tuition {
            Some(tuition) => Trainer::distil(&context, source, text, settings, tuition.teacher)?,
            None => Trainer::new(&context, source, text, settings)?,
        };
        self.resume(&mut trainer)?;
        self.score_before(&mut trainer, &mut scored)?;
        if !self.args.json {
            say(format!(
                "{}: {} to train on, {} held out\n",
                self.model_line(&trainer, &context, parameters),
                format_args!("{windows} of {} tokens", trainer.settings().context),
                scored[0].text.windows()
            ))?;
        }
        let trained = self.train(&mut trainer, &scored[0].text, prompt.as_ref())?;
        let progress = trainer.progress();
        self.write(trainer, &context, &mut scored)?;
        self.report(progress, &trained, &scored, &context)
    }

    /// Lets the teacher write a text if there is no other, unless a checkpoint was made with one that
    /// is there. Returns the device, if it was needed, and the file.
    fn write_data(
        &self,
        tuition: Option<&Tuition<'_>>,
        length: usize,
    ) -> Result<(Option<Context>, Vec<PathBuf>)> {
        let Some(tuition) = tuition.filter(|_| self.data.is_empty()) else {
            return Ok((None, Vec::new()));
        };
        let file = self.args.out.join("teacher.jsonl");
        let goes_on = self.args.resume && latest(self.checkpoints())?.is_some();
        if goes_on && file.is_file() {
            return Ok((None, vec![file]));
        }
        let context = self.open()?;
        let bar = progress("writing text", "tokens");
        bar.set_length(tuition.tokens as u64);
        let writing = Writing { tokens: tuition.tokens, length, seed: self.args.seed };
        write_text(tuition.folder, &context, &file, writing, |tokens| {
            bar.set_position(tokens as u64);
        })?;
        bar.finish_and_clear();
        Ok((Some(context), vec![file]))
    }

    fn settings(&self, source: &Source) -> Settings {
        let mut settings = self.args.settings(source);
        (settings.rate, settings.decay) = (self.rate, self.decay);
        settings.lora.clone_from(&self.lora);
        settings
    }

    /// The device, and how many parameters there are.
    fn model_line(&self, trainer: &Trainer, context: &Context, parameters: u64) -> String {
        let adapter = &context.capabilities().adapter;
        let millions = parameters as f64 / 1e6;
        if self.lora.is_none() {
            return format!("{adapter}: {millions:.2} M parameters");
        }
        let size = |info: &bitnet_train::ParameterInfo| info.shape.iter().product::<usize>();
        let own: usize = trainer.parameters().iter().map(size).sum();
        format!("{adapter}: {millions:.2} M parameters, {:.2} M of adapters", own as f64 / 1e6)
    }

    /// Scores text by the teacher, and by the model as it was.
    fn score_before(&self, trainer: &mut Trainer, scored: &mut [Scored]) -> Result<()> {
        for scored in scored.iter_mut() {
            scored.teacher = trainer.teacher_loss(&scored.text)?;
        }
        // A checkpoint of all weights has no others.
        if !self.is_finetune || self.lora.is_none() && trainer.progress().step > 0 {
            return Ok(());
        }
        for scored in scored {
            scored.before = Some(trainer.base_loss(&scored.text)?);
        }
        Ok(())
    }

    /// Writes the model or the adapters, and scores text by what was trained and what was written.
    fn write(&self, trainer: Trainer, context: &Context, scored: &mut [Scored]) -> Result<()> {
        for scored in scored.iter_mut() {
            if self.is_finetune || scored.teacher.is_some() {
                scored.trained = trainer.loss(&scored.text)?;
            }
        }
        if self.lora.is_some() {
            // Beside a merged model, other programs would add the adapters again.
            let (folder, stale) = match self.merge {
                true => (self.args.out.join("adapter"), ADAPTER),
                false => (self.args.out.clone(), MODEL),
            };
            remove(&self.args.out, &stale)?;
            trainer.export_adapter(folder)?;
        } else {
            remove(&self.args.out, &ADAPTER)?;
        }
        if !self.merge {
            return Ok(());
        }
        trainer.export(&self.args.out, &self.tokenizer, self.args.embedding_element())?;
        // The model that is scored takes its place on the GPU.
        drop(trainer);
        for scored in scored {
            scored.written = Some(score(&self.args.out, context, &scored.text)?);
        }
        Ok(())
    }

    fn checkpoints(&self) -> PathBuf {
        self.args.out.join("checkpoints")
    }

    fn check_intervals(&self) -> Result<()> {
        let intervals = [
            ("save-every", self.args.save_every),
            ("log-every", self.args.log_every),
            ("keep", self.args.keep as u64),
            ("held-out", self.args.held_out.unwrap_or(1) as u64),
            ("eval-every", self.args.eval_every.unwrap_or(1)),
        ];
        match intervals.iter().find(|(_, interval)| *interval == 0) {
            Some((option, _)) => bail!("--{option} 0: at least 1 is needed"),
            None => Ok(()),
        }
    }

    /// Checks that the output is apart from what is read.
    fn check_inputs(&self) -> Result<()> {
        let out = display(&self.args.out).to_string();
        let real = resolved(&self.args.out)?;
        for model in &self.inputs {
            if model.canonicalize().is_ok_and(|model| model == real) {
                bail!("--out {out} is a directory of the input: choose another output");
            }
        }
        // The log and the model's files would be read as text.
        let data = self.data.iter().map(|path| ("--data", path));
        for (option, data) in data.chain(self.other.iter().map(|path| ("--eval-data", path))) {
            if data.canonicalize().is_ok_and(|data| real.starts_with(data)) {
                bail!("--out {out} is in a directory of {option}: choose another output");
            }
        }
        Ok(())
    }

    /// Checks that nothing is overwritten without being asked to, before the work.
    fn check_output(&self) -> Result<()> {
        let out = display(&self.args.out);
        let has_checkpoint = latest(self.checkpoints())?.is_some();
        if has_checkpoint && !self.args.resume && !self.args.force {
            bail!("{out} has checkpoints: --resume goes on from the last one, --force starts anew");
        }
        let goes_on = self.args.resume && has_checkpoint;
        let names = ["config.json", "adapter_config.json", "log.jsonl"];
        let has_model = names.iter().any(|name| self.args.out.join(name).exists());
        if has_model && !goes_on && !self.args.force {
            bail!("{out} has a model or a log already (--force overwrites it)");
        }
        Ok(())
    }

    fn open(&self) -> Result<Context> {
        let mut options = ContextOptions::default()
            .experimental(experimental_features())
            .memory_limit(self.args.memory_limit);
        if let Some(adapter) = &self.args.adapter {
            options = options.adapter(chosen(adapter));
        }
        Ok(pollster::block_on(Context::open(options))?)
    }

    /// Goes on from the last checkpoint, or removes those of another run.
    fn resume(&self, trainer: &mut Trainer) -> Result<()> {
        let last = latest(self.checkpoints())?;
        match last {
            Some(checkpoint) if self.args.resume => {
                trainer.resume(&checkpoint)?;
                let (at, steps) = (trainer.progress().step, self.args.steps);
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
            None if self.args.resume => note("no checkpoint to resume from; starting anew"),
            None => {}
        }
        Ok(())
    }

    /// Takes the steps that are left.
    fn train(
        &self,
        trainer: &mut Trainer,
        held_out: &Corpus,
        prompt: Option<&Prompt<'_>>,
    ) -> Result<Trained> {
        let mut log = Log::open(&self.args.out.join("log.jsonl"), trainer.progress().step)?;
        let interrupted = interrupt::flag()?;
        let bar = progress("training", "steps");
        bar.set_length(trainer.settings().steps);
        bar.set_position(trainer.progress().step);
        // The position is where it is left, not what was done in this run.
        bar.reset_eta();
        let mut trained = Trained::default();
        while !trainer.is_done() {
            let start = Instant::now();
            let report = match trainer.step() {
                Ok(report) => report,
                Err(error) => {
                    // A step that ends the run is one of it.
                    let last = trainer.last_step().filter(|last| last.skipped);
                    last.map_or(Ok(()), |last| log.add(&last, start.elapsed()))?;
                    return Err(error.into());
                }
            };
            trained.add(&report, start.elapsed());
            log.add(&report, start.elapsed())?;
            let mut shown = self.show(trainer, &report, &mut trained, &bar);
            if self.args.eval_every.is_some_and(|every| report.step.is_multiple_of(every)) {
                let loss = trainer.loss(held_out)?;
                let sample = prompt.map(|prompt| prompt.continued(trainer)).transpose()?;
                log.add_evaluation(report.step, loss, sample.as_deref())?;
                shown = shown.and_then(|()| self.show_evaluation(report.step, loss, sample, &bar));
            }
            // A closed output ends the run as Ctrl-C does: with a checkpoint.
            let stopped = interrupted.load(Ordering::Relaxed) || shown.is_err();
            let is_due = report.step.is_multiple_of(self.args.save_every) && !report.skipped;
            if trainer.is_done() || stopped || is_due {
                let path = trainer.save(self.checkpoints(), self.args.keep)?;
                log.plot()?;
                if stopped && !trainer.is_done() {
                    bar.finish_and_clear();
                    shown?;
                    let (step, path) = (report.step, display(&path));
                    bail!("interrupted after step {step}: --resume goes on from {path}");
                }
            }
        }
        bar.finish_and_clear();
        // From here on, an interrupt ends the program: the checkpoint has all steps.
        interrupted.store(true, Ordering::Relaxed);
        Ok(trained)
    }

    fn show_evaluation(
        &self,
        step: u64,
        loss: f64,
        sample: Option<String>,
        bar: &ProgressBar,
    ) -> Result<()> {
        if self.args.json {
            return Ok(());
        }
        let perplexity = loss.exp();
        let mut line =
            format!("step {step:5}: held-out loss {loss:.4}, perplexity {perplexity:.2}\n");
        if let Some(sample) = sample {
            line += &format!("step {step:5}: {}\n", printable(&sample.replace('\n', "\\n")));
        }
        Ok(bar.suspend(|| say(line))?)
    }

    /// Shows a step on the bar, and some of them as lines.
    fn show(
        &self,
        trainer: &Trainer,
        report: &StepReport,
        trained: &mut Trained,
        bar: &ProgressBar,
    ) -> Result<()> {
        let StepReport { step, loss, gradient_norm, rate, skipped, .. } = *report;
        let speed = trained.since_line.rate().or(trained.all.rate()).unwrap_or_default();
        bar.set_message(format!("loss {loss:.4}, {speed:.0} tok/s"));
        bar.set_position(step);
        let is_line =
            step == 1 || step.is_multiple_of(self.args.log_every) || trainer.is_done() || skipped;
        if !is_line {
            return Ok(());
        }
        trained.since_line = Speed::default();
        if self.args.json {
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
        all: &[Scored],
        context: &Context,
    ) -> Result<()> {
        let (loss, tokens) = all[0].last();
        let perplexity = loss.exp();
        if self.args.json {
            let mut object = json!({
                "steps": progress.step, "skipped": progress.skipped, "loss": trained.loss,
                "held_out_loss": loss, "perplexity": perplexity, "held_out_tokens": tokens,
                "tokens_per_second": trained.all.rate(), "adapter": context.capabilities().adapter,
            });
            if self.is_finetune || all[0].teacher.is_some() {
                object["scores"] = all.iter().map(Scored::json).collect();
            }
            return Ok(say(format!("{object}\n"))?);
        }
        if self.is_finetune || all[0].teacher.is_some() {
            let what = if self.lora.is_some() { "with adapters" } else { "trained" };
            all.iter().try_for_each(|scored| say(scored.line(what)))?;
        }
        if self.lora.is_some() && self.merge {
            let why = "merged weights are ternary again, so the model can answer differently than with its adapters";
            note(why);
        }
        let skipped = match progress.skipped {
            0 => String::new(),
            count => format!(", {} skipped", counted(count as usize, "step")),
        };
        let kind = if self.merge { "" } else { " with these adapters" };
        Ok(say(format!(
            "{}: perplexity {perplexity:.2} (loss {loss:.4}) over {tokens} held-out tokens{kind}{skipped}\n",
            display(&self.args.out)
        ))?)
    }
}

/// The files of adapters and of a model, of which a folder has one kind; the first one says which.
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
const MODEL: [&str; 2] = ["config.json", "model.safetensors"];

/// Removes files of an earlier run that would be taken for those of this one.
fn remove(folder: &Path, names: &[&str]) -> Result<()> {
    for path in names.iter().map(|name| folder.join(name)).filter(|path| path.exists()) {
        fs::remove_file(&path).with_context(|| format!("removing {}", display(&path)))?;
    }
    Ok(())
}

/// Says which conversations did not fit.
fn note_cut(text: &Corpus) {
    let report = text.chat_report();
    if report.cut + report.left_out > 0 {
        let all = counted(report.conversations, "conversation");
        note(format!(
            "of {all}, {} cut at --context, and {} left out, since no answer begins before it",
            report.cut, report.left_out
        ));
    }
}

impl Scored {
    fn new(name: &'static str, text: Corpus) -> Self {
        Self { name, text, teacher: None, before: None, trained: f64::NAN, written: None }
    }

    /// Loss and tokens of the model that was written, or else of the one that was trained.
    fn last(&self) -> (f64, usize) {
        match self.written {
            Some(Score { loss, tokens }) => (loss, tokens),
            None => (self.trained, self.text.learned()),
        }
    }

    fn json(&self) -> Value {
        json!({
            "text": self.name, "tokens": self.last().1, "loss_teacher": self.teacher,
            "loss_before": self.before, "loss_trained": self.trained, "loss_written": self.written.map(|written| written.loss),
        })
    }

    fn line(&self, trained: &str) -> String {
        let mut parts = Vec::new();
        parts.extend(self.teacher.map(|loss| format!("{:.2} of the teacher", loss.exp())));
        parts.extend(self.before.map(|loss| format!("{:.2} before", loss.exp())));
        parts.push(format!("{:.2} {trained}", self.trained.exp()));
        parts.extend(self.written.map(|written| format!("{:.2} as written", written.loss.exp())));
        format!("{}: perplexity {}\n", self.name, parts.join(", "))
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
