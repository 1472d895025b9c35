//! What a run has done, and its log.

use super::plot;
use anyhow::{Context as _, Result};
use bitnet_train::StepReport;
use bitnet_wgpu::internals::files::{display, read, write};
use serde_json::{Value, json};
use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// Most bytes of a log that is gone on with.
const MAX_LOG: u64 = 1 << 30;

/// Tokens and the time that they took.
#[derive(Clone, Copy, Default)]
pub struct Speed {
    tokens: usize,
    time: Duration,
}

impl Speed {
    /// Returns tokens per second.
    pub fn rate(self) -> Option<f64> {
        (self.tokens > 0).then(|| self.tokens as f64 / self.time.as_secs_f64().max(1e-9))
    }

    fn add(&mut self, tokens: usize, time: Duration) {
        self.tokens += tokens;
        self.time += time;
    }
}

/// What a run has done so far.
#[derive(Default)]
pub struct Trained {
    /// Of the last step.
    pub loss: Option<f64>,
    steps: u64,
    /// Without the first step, which compiles the kernels.
    pub all: Speed,
    pub since_line: Speed,
}

impl Trained {
    pub fn add(&mut self, report: &StepReport, took: Duration) {
        let tokens = report.tokens;
        if self.steps > 0 {
            self.all.add(tokens, took);
        }
        self.since_line.add(tokens, took);
        self.steps += 1;
        self.loss = Some(report.loss);
    }
}

/// One JSON object per step.
pub struct Log {
    file: File,
    path: PathBuf,
    /// Losses by steps, and those of held-out windows.
    losses: Vec<(u64, f64)>,
    held_out: Vec<(u64, f64)>,
}

impl Log {
    /// Opens a log without the steps after `step`, which are computed again.
    pub fn open(path: &Path, step: u64) -> Result<Self> {
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
        let mut log =
            Self { file, path: path.to_owned(), losses: Vec::new(), held_out: Vec::new() };
        let lines = kept.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.for_each(|json: Value| log.note(&json));
        Ok(log)
    }

    pub fn add(&mut self, report: &StepReport, took: Duration) -> Result<()> {
        let StepReport { step, loss, tokens, gradient_norm, rate, skipped } = *report;
        let object = json!({
            "step": step, "loss": loss, "gradient_norm": gradient_norm, "learning_rate": rate,
            "tokens": tokens, "seconds": took.as_secs_f64(), "skipped": skipped,
        });
        self.write(&object)
    }

    /// Adds the loss of held-out windows after a step, and what the model writes then.
    pub fn add_evaluation(&mut self, step: u64, loss: f64, sample: Option<&str>) -> Result<()> {
        let mut object = json!({"step": step, "held_out_loss": loss});
        if let Some(sample) = sample {
            object["sample"] = sample.into();
        }
        self.write(&object)
    }

    fn write(&mut self, object: &Value) -> Result<()> {
        self.note(object);
        writeln!(self.file, "{object}").with_context(|| format!("writing {}", display(&self.path)))
    }

    /// Keeps the loss of a line.
    fn note(&mut self, json: &Value) {
        let Some(step) = json["step"].as_u64() else { return };
        self.losses.extend(json["loss"].as_f64().map(|loss| (step, loss)));
        self.held_out.extend(json["held_out_loss"].as_f64().map(|loss| (step, loss)));
    }

    /// Draws the losses beside the log.
    pub fn plot(&self) -> Result<()> {
        let svg = plot::svg(&self.losses, &self.held_out);
        Ok(write(self.path.with_file_name("loss.svg"), svg.as_bytes())?)
    }
}
