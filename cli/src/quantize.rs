//! `bitnet quantize`: packs a float checkpoint into the two-bit format of transformers, or writes a
//! model as a GGUF file or a native container.

use crate::{
    model::{Activations, FileArgs, I2s, progress, resolve, with_progress},
    note, say,
};
use anyhow::Result;
use bitnet_wgpu::{
    formats::{Checkpoint, GgufType, ReadOptions, WrittenTensor, write_gguf, write_packed},
    model::{ModelFiles, Tokenizer},
};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A directory as transformers writes it
    Packed,
    /// A GGUF file, in blocks of 256 weights
    #[value(name = "gguf-tq2_0")]
    Tq2,
    /// A GGUF file, in blocks of 64 weights
    #[value(name = "gguf-q2_0")]
    Q2,
}

/// Packs a float checkpoint to two bits per weight: linear layers are quantised by their absmean,
/// other tensors copied
#[derive(Args)]
pub struct Quantize {
    /// Model directory: config.json, and model.safetensors or its shards. With --native, any model
    input: PathBuf,
    /// Directory for the packed model, GGUF file, or native container
    output: PathBuf,
    /// What is written; GGUF files are for llama.cpp
    #[arg(long, default_value = "packed")]
    format: Format,
    /// Write one file with the weights as kernels read them, which loads without packing them again
    #[arg(long, conflicts_with = "format")]
    native: bool,
    /// Keep the head in 8 bits
    #[arg(long, requires = "native")]
    int8_head: bool,
    /// How I2_S tensors of a GGUF file lie [default: x86]
    #[arg(long, requires = "native")]
    i2s: Option<I2s>,
    /// How linear layers take their activations, whatever the files say
    #[arg(long)]
    activations: Option<Activations>,
    /// Write the model though its files have tensors that are not used
    #[arg(long, requires = "native")]
    ignore_unused: bool,
    /// Quantise float weights, though nothing says that the model was trained for it
    #[arg(long)]
    quantize: bool,
    /// Overwrite an existing model, unless it is the one that is read
    #[arg(long)]
    force: bool,
    /// Print one JSON object instead of a line a tensor
    #[arg(long)]
    json: bool,
}

impl Quantize {
    pub fn run(self) -> Result<()> {
        if self.native {
            return self.native();
        }
        let options = ReadOptions::default()
            .quantize(self.quantize)
            .quantized_activations(self.activations.map(Activations::are_quantized));
        let checkpoint = Checkpoint::open(&self.input)?.with_options(options);
        let bar = progress("packing", "tensors");
        let (mut tensors, mut printed) = (Vec::new(), Ok(()));
        let written = |tensor: &WrittenTensor| {
            bar.set_length(tensor.total as u64);
            bar.set_position(tensor.done as u64);
            if !self.json && printed.is_ok() {
                printed = bar.suspend(|| say(line(tensor)));
            }
            tensors.push(tensor.clone());
        };
        match self.format {
            Format::Packed => write_packed(&checkpoint, &self.output, self.force, written)?,
            Format::Tq2 => self.gguf(&checkpoint, GgufType::Tq2_0, written)?,
            Format::Q2 => self.gguf(&checkpoint, GgufType::Q2_0, written)?,
        }
        bar.finish_and_clear();
        printed?;
        let sum = |bytes: fn(&WrittenTensor) -> u64| tensors.iter().map(bytes).sum::<u64>();
        let (before, after) = (sum(|tensor| tensor.bytes_before), sum(|tensor| tensor.bytes_after));
        if self.json {
            let tensor = |tensor: &WrittenTensor| {
                let WrittenTensor { name, bytes_before, bytes_after, error, .. } = tensor;
                json!({ "name": name, "bytes_before": bytes_before, "bytes_after": bytes_after, "relative_error": error })
            };
            let tensors: Vec<_> = tensors.iter().map(tensor).collect();
            say(format!(
                "{}\n",
                json!({ "bytes_before": before, "bytes_after": after, "tensors": tensors })
            ))?;
        } else {
            let ratio = before as f64 / after.max(1) as f64;
            say(format!(
                "{:.1} MB to {:.1} MB: {ratio:.2} times smaller\n",
                before as f64 / 1e6,
                after as f64 / 1e6
            ))?;
        }
        Ok(())
    }

    /// Writes a native container of any model, with its tokenizer, where there is one.
    fn native(&self) -> Result<()> {
        let &Self { quantize, activations, i2s, ignore_unused, .. } = self;
        let file = FileArgs { quantize, activations, i2s: i2s.unwrap_or_default(), ignore_unused };
        let files = ModelFiles::open_with(resolve(&self.input)?, file.options())?;
        if let Err(error) = files.tokenizer() {
            note(format!("the file will take token ids, and no text: {error}"));
        }
        with_progress("packing", |progress| {
            let builder = files.builder().int8_head(self.int8_head).ignore_unused(ignore_unused);
            builder.progress(progress).write_prepacked(&self.output, self.force)
        })?;
        let bytes = self.output.metadata()?.len();
        match self.json {
            true => say(format!("{}\n", json!({ "bytes": bytes })))?,
            false => say(format!("{:.1} MB\n", bytes as f64 / 1e6))?,
        }
        Ok(())
    }

    /// Writes a GGUF file with the directory's tokenizer, where there is one.
    fn gguf(
        &self,
        checkpoint: &Checkpoint,
        kind: GgufType,
        written: impl FnMut(&WrittenTensor),
    ) -> Result<()> {
        let vocabulary = if checkpoint.path().join("tokenizer.json").exists() {
            Some(Tokenizer::from_directory(checkpoint.path())?.to_gguf()?)
        } else {
            note("there is no tokenizer.json: the file will take token ids, and no text");
            None
        };
        Ok(write_gguf(checkpoint, vocabulary.as_ref(), &self.output, kind, self.force, written)?)
    }
}

fn line(tensor: &WrittenTensor) -> String {
    let ratio = tensor.bytes_before as f64 / tensor.bytes_after.max(1) as f64;
    let error = tensor
        .error
        .map_or_else(|| "unchanged".into(), |error| format!("relative error {error:.3}"));
    format!("{:<50} {ratio:>6.2} times smaller, {error}\n", tensor.name)
}
