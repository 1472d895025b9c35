//! Measures a model's perplexity on a text: `cargo run --release --example perplexity -- --text FILE --window 255`.

#[path = "support/model.rs"]
mod support;

use bitnet_wgpu::{Error, Result};
use clap::Parser;
use std::{path::PathBuf, process::ExitCode, time::Instant};
use support::ModelArgs;

/// Computes a model's perplexity on a text, in separate windows with BOS before each; every token is scored once
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// The text
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m/golden/heldout_own.txt"))]
    text: PathBuf,
    /// Tokens of text per window [default: fills the context]
    #[arg(long)]
    window: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    let model = arguments.model.load()?;
    let text = std::fs::read_to_string(&arguments.text).map_err(|source| Error::Io { path: arguments.text.clone(), source })?;
    let ids = model.tokenizer()?.encode_plain(&text)?;
    let invalid = |what: &str| Error::Invalid { op: "perplexity", what: what.into() };
    let bos = model.tokenizer()?.bos().or(model.config().bos).ok_or_else(|| invalid("the model has no BOS"))?;
    let window = arguments.window.unwrap_or(model.config().context.saturating_sub(1));
    if window == 0 || ids.is_empty() {
        return Err(invalid("the text has no tokens, or --window is 0"));
    }
    let (start, mut nll) = (Instant::now(), 0.0);
    for window in ids.chunks(window) {
        nll += pollster::block_on(model.score(&[&[bos], window].concat()))?.iter().sum::<f64>();
    }
    let (adapter, language) = support::device(&model);
    let perplexity = (nll / ids.len() as f64).exp();
    let rate = ids.len() as f64 / start.elapsed().as_secs_f64();
    if arguments.json {
        println!(
            "{}",
            serde_json::json!({
                "perplexity": perplexity, "tokens": ids.len(), "nll": nll, "tokens_per_second": rate, "adapter": adapter, "language": language,
            })
        );
    } else {
        println!("perplexity {perplexity:.4} over {} tokens in windows of {window} ({rate:.0} tokens per second on {adapter})", ids.len());
    }
    Ok(())
}

fn main() -> ExitCode {
    support::log();
    support::report(run())
}
