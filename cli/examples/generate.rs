//! Generates text, printed token by token: `cargo run --release --example generate -- --prompt "Once upon a time"`. `bitnet run` with the shipped
//! model as its default, after a short run that is not timed.

use bitnet_cli::run::{RunArgs, run};
use clap::Parser;
use std::{path::PathBuf, process::ExitCode};

/// Continues a prompt with a BitNet model
#[derive(Parser)]
struct Arguments {
    /// A model directory (config.json, safetensors, tokenizer.json), a GGUF file, or a name on the Hugging Face hub
    #[arg(long, value_name = "DIR|FILE.gguf|OWNER/NAME", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m"))]
    model: PathBuf,
    /// The text to continue
    #[arg(long, default_value = "Once upon a time there was a little girl who lived in a cottage by the sea.")]
    prompt: String,
    #[command(flatten)]
    how: RunArgs,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    arguments.how.generation.max_tokens.get_or_insert(128);
    bitnet_cli::main(|| run(&arguments.model, &arguments.prompt, &arguments.how, true))
}
