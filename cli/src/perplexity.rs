//! `bitnet perplexity`: scores a text.

use crate::{
    model::{self, ModelArgs},
    say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_wgpu::{Element, model::SessionOptions};
use clap::Args;
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// Computes a model's perplexity on a text, in separate windows with BOS before each; every token is scored once
#[derive(Args)]
pub struct Perplexity {
    /// A model directory, a GGUF file, or a name on the Hugging Face hub
    model: String,
    /// The text
    text: PathBuf,
    #[command(flatten)]
    how: PerplexityArgs,
}

/// What `bitnet perplexity` and the example take.
#[derive(Args)]
pub struct PerplexityArgs {
    /// Tokens of text per window [default: fills the context]
    #[arg(long)]
    pub window: Option<usize>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl Perplexity {
    pub fn run(self) -> Result<()> {
        run(&self.model, &self.text, &self.how)
    }
}

pub fn run(name: &str, text: &Path, args: &PerplexityArgs) -> Result<()> {
    let text = model::read(text)?;
    let files = args.model.open(name)?;
    let ids = files.tokenizer()?.encode_plain(&text)?;
    let bos = files.tokenizer()?.bos().or(files.config().bos).context("the model has no BOS")?;
    let context = files.config().context;
    let window = args.window.unwrap_or(context.saturating_sub(1));
    if ids.is_empty() {
        bail!("the text has no tokens");
    }
    if window == 0 || window >= context {
        bail!("--window {window}: 1 to {} tokens and BOS fit the model's context", context.saturating_sub(1));
    }
    let model = args.model.load(&files, SessionOptions::new(1, window + 1).cache(Element::F32))?;
    let (start, mut nll) = (Instant::now(), 0.0);
    for window in ids.chunks(window) {
        nll += pollster::block_on(model.score(&[&[bos], window].concat()))?.iter().sum::<f64>();
    }
    let (adapter, language) = model::device(&model)?;
    let perplexity = (nll / ids.len() as f64).exp();
    let rate = ids.len() as f64 / start.elapsed().as_secs_f64();
    if args.json {
        let object = serde_json::json!({
            "perplexity": perplexity, "tokens": ids.len(), "window": window, "nll": nll, "tokens_per_second": rate, "adapter": adapter,
            "language": language,
        });
        say(format!("{object}\n"))?;
    } else {
        let tokens = ids.len();
        say(format!(
            "perplexity {perplexity:.4} over {tokens} tokens in windows of {window} ({rate:.0} tokens per second on {adapter})\n"
        ))?;
    }
    Ok(())
}
