//! The command line of `bitnet`.

use crate::{
    adapters::Adapters, bench::Bench, chat::Chat, doctor::Doctor, embed::Embed, info::Info,
    perplexity::Perplexity, quantize::Quantize, run::Run, serve::Serve,
};
use anyhow::Result;
use clap::{Parser, Subcommand};

/// Runs, serves, scores, converts and benchmarks ternary (1.58-bit) language models on the GPU or
/// the CPU
///
/// A MODEL is a directory in the format of transformers (config.json, safetensors, tokenizer.json),
/// a GGUF file, a prepacked model file, or a name on the Hugging Face hub:
/// OWNER/NAME[@REVISION][:FILE.gguf].
// The brackets are of the help text, and no links.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Parser)]
#[command(name = "bitnet", version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Run),
    Chat(Chat),
    Serve(Serve),
    Embed(Embed),
    Perplexity(Perplexity),
    Quantize(Quantize),
    Bench(Bench),
    Info(Info),
    Adapters(Adapters),
    Doctor(Doctor),
}

impl Arguments {
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Run(run) => run.run(),
            Command::Chat(chat) => chat.run(),
            Command::Serve(serve) => serve.run(),
            Command::Embed(embed) => embed.run(),
            Command::Perplexity(perplexity) => perplexity.run(),
            Command::Quantize(quantize) => quantize.run(),
            Command::Bench(bench) => bench.run(),
            Command::Info(info) => info.run(),
            Command::Adapters(adapters) => adapters.run(),
            Command::Doctor(doctor) => doctor.run(),
        }
    }
}
