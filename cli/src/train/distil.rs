//! `bitnet distil`: trains a student from a teacher's distribution.

use super::{
    job::{Job, Tuition},
    options::RunArgs,
};
use anyhow::{Result, bail};
use bitnet_train::{Distillation, Source, Teacher};
use bitnet_wgpu::{internals::files::display, model::Tokenizer};
use clap::Args;
use std::path::PathBuf;

/// Trains a ternary model to predict what another model predicts
///
/// The student learns the teacher's distribution of every next token, and with the rest of the
/// weight the text's own tokens. Both are of bitnet, llama or qwen3, and have the same tokenizer:
/// that of the teacher is written with the student. Without --data, the teacher writes the text,
/// which is kept as `teacher.jsonl`. Everything else is as `bitnet train` has it.
#[derive(Args)]
pub struct Distil {
    /// Teacher: model directory with ternary or float weights in safetensors
    teacher: PathBuf,
    /// Directory with the config.json of the student, whose first weights are random
    #[arg(long, value_name = "DIR", required_unless_present = "init")]
    config: Option<PathBuf>,
    /// Model directory with float or ternary weights in safetensors, which the student starts from
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    init: Option<PathBuf>,
    /// Files of .txt or .jsonl as for `bitnet train`, or directories with such files
    /// [default: the teacher writes the text]
    #[arg(long, value_name = "PATH", num_args = 1..)]
    data: Vec<PathBuf>,
    /// Number of tokens that the teacher writes [default: those of the run, at most 1 M]
    #[arg(long, value_name = "TOKENS", conflicts_with = "data")]
    teacher_tokens: Option<usize>,
    /// Divisor of the logits of both models: above 1, less likely tokens count more
    #[arg(long, value_name = "T", default_value_t = 2.0)]
    temperature: f32,
    /// Weight of the teacher's distribution, 0 to 1; the tokens of the text have the rest
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    teacher_share: f32,
    /// Largest learning rate of AdamW
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    lr: f32,
    /// Weight decay of matrices and embeddings; norms have none
    #[arg(long, value_name = "DECAY", default_value_t = 0.1)]
    weight_decay: f32,
    #[command(flatten, next_help_heading = "Training")]
    run: RunArgs,
}

impl Distil {
    pub fn run(self) -> Result<()> {
        let name = display(&self.teacher);
        if !self.teacher.is_dir() {
            bail!("{name} is no model directory: one with config.json and safetensors is needed");
        }
        let source = match (&self.init, &self.config) {
            (Some(folder), _) => Source::from_weights(folder)?,
            (None, Some(folder)) => Source::from_config(folder)?,
            (None, None) => bail!("--config or --init is needed"),
        };
        let mut mix = Distillation::default();
        (mix.temperature, mix.share) = (self.temperature, self.teacher_share);
        let teacher = Teacher::open(&self.teacher, mix)?;
        if self.data.is_empty() && !teacher.is_ternary() {
            bail!("{name} has float weights, with which it writes no text: --data is needed");
        }
        let settings = self.run.settings(&source);
        teacher.check(source.config(), settings.context)?;
        if let Some(folder) = self.init.iter().chain(&self.config).next()
            && folder.join("tokenizer.json").is_file()
        {
            let own = Tokenizer::from_directory(&self.teacher)?;
            teacher.check_tokenizer(&own, &Tokenizer::from_directory(folder)?)?;
        }
        let all = settings.tokens().saturating_mul(usize::try_from(settings.steps)?);
        let tokens = self.teacher_tokens.unwrap_or(all.min(1 << 20));
        let job = Job {
            args: &self.run,
            data: &self.data,
            rate: self.lr,
            decay: self.weight_decay,
            lora: None,
            merge: true,
            inputs: [Some(&self.teacher), self.init.as_ref(), self.config.as_ref()]
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            tokenizer: self.teacher.clone(),
            is_finetune: false,
            other: &[],
        };
        job.run(source, Some(Tuition { teacher, folder: &self.teacher, tokens }))
    }
}
