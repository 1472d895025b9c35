//! `bitnet train`, `bitnet finetune` and `bitnet distil`: train a model on text.

mod distil;
mod finetune;
mod job;
mod log;
mod options;
mod plot;
mod sample;

pub use distil::Distil;
pub use finetune::Finetune;

use anyhow::{Result, bail};
use bitnet_train::Source;
use clap::Args;
use job::Job;
use options::RunArgs;
use std::path::{Path, PathBuf};

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
    /// Model directory with float or ternary weights in safetensors, which training starts from
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    init: Option<PathBuf>,
    /// Directory with tokenizer.json [default: that of --config or --init]
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Files of .txt (a document each) or .jsonl (a document per line, as {"text": ".."}, or a
    /// conversation, as {"messages": [..]}), or directories with such files
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    data: Vec<PathBuf>,
    /// Largest learning rate of AdamW
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    lr: f32,
    /// Weight decay of matrices and embeddings; norms have none
    #[arg(long, value_name = "DECAY", default_value_t = 0.1)]
    weight_decay: f32,
    #[command(flatten, next_help_heading = "Training")]
    run: RunArgs,
}

impl Train {
    pub fn run(self) -> Result<()> {
        let source = match (&self.init, &self.config) {
            (Some(folder), _) => Source::from_weights(folder)?,
            (None, Some(folder)) => Source::from_config(folder)?,
            (None, None) => bail!("--config or --init is needed"),
        };
        let folders = [&self.tokenizer, &self.init, &self.config];
        let tokenizer = folders.into_iter().flatten().next().map_or(Path::new("."), |path| path);
        let job = Job {
            args: &self.run,
            data: &self.data,
            rate: self.lr,
            decay: self.weight_decay,
            lora: None,
            merge: true,
            inputs: folders.into_iter().flatten().cloned().collect(),
            tokenizer: tokenizer.to_owned(),
            is_finetune: false,
            other: &[],
        };
        job.run(source, None)
    }
}
