//! `bitnet finetune`: trains a model that exists.

use super::{job::Job, options::RunArgs};
use anyhow::{Result, bail};
use bitnet_train::{Lora, Source};
use clap::Args;
use std::path::PathBuf;

/// Learning rates where none is given: adapters begin at 0.
const RATE: f32 = 1e-4;
const LORA_RATE: f32 = 1e-3;

/// Trains a model further, on conversations or text
///
/// The model is one of bitnet, llama or qwen3, with ternary or float weights. Conversations are
/// lines such as {"messages": [{"role": "user", "content": ".."}, {"role": "assistant", "content":
/// ".."}]}. The model's chat template writes them, and only the assistant's answers are learned.
/// All weights are trained, and the output is a model directory. With --lora, ternary weights stay
/// as they are, and the output has adapters, as PEFT names them. `bitnet run` does not read
/// adapters: --merge writes a model. Its weights are ternary again, which loses a part of what the
/// adapters have learned; perplexities before and after are printed.
#[derive(Args)]
pub struct Finetune {
    /// Model directory with ternary or float weights in safetensors
    model: PathBuf,
    /// Directory with tokenizer.json [default: that of the model]
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Files of .txt (a document each) or .jsonl (a document per line, as {"text": ".."}, or a
    /// conversation, as {"messages": [..]}), or directories with such files
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    data: Vec<PathBuf>,
    /// Other text, as for --data, whose perplexity is printed before and after
    #[arg(long, value_name = "PATH", num_args = 1..)]
    eval_data: Vec<PathBuf>,
    /// Train adapters of this rank instead of the weights
    #[arg(long, value_name = "RANK")]
    lora: Option<usize>,
    /// Factor of the adapters, times the rank [default: twice the rank]
    #[arg(long, value_name = "ALPHA", requires = "lora")]
    lora_alpha: Option<f32>,
    /// Layers with adapters, such as q_proj,v_proj [default: all linear layers]
    #[arg(long, value_name = "NAMES", requires = "lora", value_delimiter = ',')]
    lora_targets: Vec<String>,
    /// Add the adapters to the weights, and write a model directory
    #[arg(long, requires = "lora")]
    merge: bool,
    /// Largest learning rate of AdamW [default: 1e-4, or 1e-3 with --lora]
    #[arg(long, value_name = "RATE")]
    lr: Option<f32>,
    /// Weight decay of matrices, embeddings and adapters; norms have none
    #[arg(long, value_name = "DECAY", default_value_t = 0.0)]
    weight_decay: f32,
    #[command(flatten, next_help_heading = "Training")]
    run: RunArgs,
}

impl Finetune {
    pub fn run(self) -> Result<()> {
        if !self.model.is_dir() {
            bail!(
                "{} is no model directory: one with config.json and safetensors is needed",
                bitnet_wgpu::internals::files::display(&self.model)
            );
        }
        let source = Source::from_weights(&self.model)?;
        let lora = self.lora.map(|rank| {
            let mut lora = Lora::new(rank);
            lora.alpha = self.lora_alpha.unwrap_or(lora.alpha);
            if !self.lora_targets.is_empty() {
                lora.targets.clone_from(&self.lora_targets);
            }
            lora
        });
        let tokenizer = self.tokenizer.as_ref().unwrap_or(&self.model);
        let job = Job {
            args: &self.run,
            data: &self.data,
            rate: self.lr.unwrap_or(if lora.is_some() { LORA_RATE } else { RATE }),
            decay: self.weight_decay,
            merge: self.merge || lora.is_none(),
            lora,
            inputs: [Some(&self.model), self.tokenizer.as_ref()]
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            tokenizer: tokenizer.clone(),
            is_finetune: true,
            other: &self.eval_data,
        };
        job.run(source, None)
    }
}
