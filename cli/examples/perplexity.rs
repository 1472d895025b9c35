//! Measures a model's perplexity on a text:
//! `cargo run --release --example perplexity -- --text FILE --window 255`. `bitnet perplexity` with
//! the shipped model, a text that it was not trained on, and the length of the texts that it was
//! trained on as its defaults.

use bitnet_cli::perplexity::{PerplexityArgs, run};
use clap::Parser;
use std::{path::PathBuf, process::ExitCode};

/// Computes a model's perplexity on a text, in separate windows with BOS before each; every token
/// is scored once
#[derive(Parser)]
struct Arguments {
    /// A model directory (config.json, safetensors, tokenizer.json), a GGUF file, or a name on the
    /// Hugging Face hub
    #[arg(long, value_name = "DIR|FILE.gguf|OWNER/NAME", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m"))]
    model: PathBuf,
    /// The text
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m/golden/heldout_own.txt"))]
    text: PathBuf,
    #[command(flatten)]
    how: PerplexityArgs,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    arguments.how.window.get_or_insert(255);
    bitnet_cli::main(|| run(&arguments.model, &arguments.text, &arguments.how))
}
