//! Options of all training commands.

use crate::model::{Activations, bytes};
use bitnet_train::{DenseElement, LinearMode, Precision, Schedule, Settings, Source};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Decline {
    Cosine,
    Constant,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Products {
    /// f32
    F32,
    /// f16, with sums and weights in f32; needs a GPU with f16
    Mixed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum EmbeddingType {
    F32,
    Bf16,
    F16,
}

/// Options of all training commands.
#[derive(Args)]
pub struct RunArgs {
    /// Directory to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Number of steps
    #[arg(long, value_name = "N")]
    pub steps: u64,
    /// Number of windows per micro-batch
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub batch: usize,
    /// Number of micro-batches per step, whose gradients are added
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub accumulate: usize,
    /// Number of tokens per window [default: 256, or the model's context if it is smaller]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Last learning rate of the cosine, as a share of --lr
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub final_lr: f32,
    /// Number of steps in which the learning rate grows to --lr [default: a tenth of --steps]
    #[arg(long, value_name = "STEPS")]
    pub warmup: Option<u64>,
    /// Learning rate after the warm-up
    #[arg(long, value_name = "SCHEDULE", default_value = "cosine")]
    pub schedule: Decline,
    /// Largest norm of all gradients together
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    pub clip: f32,
    /// Seed of the first weights and of the order of windows
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Activation type of linear layers [default: float for qwen3, else int8]
    #[arg(long, value_name = "TYPE")]
    pub activations: Option<Activations>,
    /// Type of products of linear layers, but for those of int8 activations
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub precision: Products,
    /// Number of windows at the end of the text that are held out [default: 1 % of them, 1 to 64]
    #[arg(long, value_name = "WINDOWS")]
    pub held_out: Option<usize>,
    /// Type of embedding, LM head and norms in the model that is written
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    pub embedding_type: EmbeddingType,
    /// Number of steps between two checkpoints
    #[arg(long, value_name = "STEPS", default_value_t = 100)]
    pub save_every: u64,
    /// Number of checkpoints that are kept
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub keep: usize,
    /// Number of steps in a row with a loss or a gradient that is not finite, after which training
    /// ends with an error
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub max_skipped: u32,
    /// Go on from the last checkpoint in the output directory, if there is one
    #[arg(long)]
    pub resume: bool,
    /// Overwrite a model in the output directory
    #[arg(long)]
    pub force: bool,
    /// Number of steps after which held-out windows are scored, and again [default: never]
    #[arg(long, value_name = "STEPS")]
    pub eval_every: Option<u64>,
    /// Text that the model continues after held-out windows are scored, with its most likely tokens
    #[arg(long, value_name = "PROMPT", requires = "eval_every")]
    pub sample: Option<String>,
    /// Number of steps between two lines of output
    #[arg(long, value_name = "STEPS", default_value_t = 10)]
    pub log_every: u64,
    /// GPU by part of its name or by its number in `bitnet adapters`
    #[arg(long, value_name = "NAME|NUMBER")]
    pub adapter: Option<String>,
    /// Limit of GPU memory, in bytes, or with the suffix K, M or G (2^10, 2^20, 2^30)
    /// [default: none]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory_limit: Option<u64>,
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    /// Returns the settings of a run, without what commands have defaults of their own for.
    pub fn settings(&self, source: &Source) -> Settings {
        let config = source.config();
        let context = self.context.unwrap_or(config.context.min(256));
        let mut settings = Settings::new(self.steps, self.batch, context);
        settings.accumulation = self.accumulate;
        settings.final_rate = self.final_lr;
        settings.warm_up = self.warmup.unwrap_or(settings.warm_up);
        settings.schedule = match self.schedule {
            Decline::Cosine => Schedule::Cosine,
            Decline::Constant => Schedule::Constant,
        };
        settings.clip = self.clip;
        (settings.seed, settings.most_skipped) = (self.seed, self.max_skipped);
        let quantized = self.activations.map(Activations::are_quantized);
        settings.linear = match quantized.unwrap_or(config.quantized_activations) {
            true => LinearMode::Int8,
            false => LinearMode::Float,
        };
        settings.precision = match self.precision {
            Products::F32 => Precision::F32,
            Products::Mixed => Precision::Mixed,
        };
        settings
    }

    /// Returns the type of tables and norms in the model that is written.
    pub fn embedding_element(&self) -> DenseElement {
        match self.embedding_type {
            EmbeddingType::F32 => DenseElement::F32,
            EmbeddingType::Bf16 => DenseElement::Bf16,
            EmbeddingType::F16 => DenseElement::F16,
        }
    }
}
