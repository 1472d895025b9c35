//! The command line of `bitnet`.

#[cfg(feature = "hub")]
use crate::models::{List, Pull, Remove};
#[cfg(feature = "train")]
use crate::train::{Distil, Finetune, Train};
use crate::{
    adapters::Adapters,
    bench::Bench,
    chat::Chat,
    completions::{Completions, ManualPages},
    doctor::Doctor,
    embed::Embed,
    export::Export,
    info::Info,
    perplexity::Perplexity,
    quantize::Quantize,
    run::Run,
    serve::Serve,
    tokenize::Tokenize,
    tune::Tune,
};
use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};

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
    Tokenize(Tokenize),
    Perplexity(Perplexity),
    Quantize(Quantize),
    Export(Export),
    #[cfg(feature = "train")]
    Train(Box<Train>),
    #[cfg(feature = "train")]
    Finetune(Box<Finetune>),
    #[cfg(feature = "train")]
    Distil(Box<Distil>),
    Bench(Bench),
    Tune(Tune),
    Info(Info),
    #[cfg(feature = "hub")]
    Pull(Pull),
    #[cfg(feature = "hub")]
    List(List),
    #[cfg(feature = "hub")]
    Rm(Remove),
    Adapters(Adapters),
    Doctor(Doctor),
    Completions(Completions),
    Man(ManualPages),
}

impl Arguments {
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Run(run) => run.run(),
            Command::Chat(chat) => chat.run(),
            Command::Serve(serve) => serve.run(),
            Command::Embed(embed) => embed.run(),
            Command::Tokenize(tokenize) => tokenize.run(),
            Command::Perplexity(perplexity) => perplexity.run(),
            Command::Quantize(quantize) => quantize.run(),
            Command::Export(export) => export.run(),
            #[cfg(feature = "train")]
            Command::Train(train) => train.run(),
            #[cfg(feature = "train")]
            Command::Finetune(finetune) => finetune.run(),
            #[cfg(feature = "train")]
            Command::Distil(distil) => distil.run(),
            Command::Bench(bench) => bench.run(),
            Command::Tune(tune) => tune.run(),
            Command::Info(info) => info.run(),
            Command::Adapters(adapters) => adapters.run(),
            Command::Doctor(doctor) => doctor.run(),
            #[cfg(feature = "hub")]
            Command::Pull(pull) => pull.run(),
            #[cfg(feature = "hub")]
            Command::List(list) => list.run(),
            #[cfg(feature = "hub")]
            Command::Rm(remove) => remove.run(),
            Command::Completions(completions) => completions.run(Self::command()),
            Command::Man(pages) => pages.run(Self::command()),
        }
    }
}
