//! `bitnet quantize`: packs a float checkpoint into the two-bit format of transformers, or writes a
//! model as a GGUF file or a prepacked model file.

use crate::{
    model::{FileArgs, progress, resolve, with_progress},
    note, say, text,
};
use anyhow::{Result, anyhow, bail};
use bitnet_wgpu::{
    formats::{Checkpoint, GgufType, WrittenTensor, write_gguf, write_mlx, write_packed},
    internals::{ModelFormat, files::display, identify},
    model::{ModelFiles, Tokenizer},
};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Format {
    /// Directory in the format of transformers, two bits per weight
    Packed,
    /// Directory for mlx-lm, two bits per weight with a scale for 128 (64, 32) neighbors
    Mlx,
    /// GGUF file for llama.cpp, in blocks of 256 weights
    #[value(name = "gguf-tq2_0")]
    Tq2,
    /// GGUF file for llama.cpp, in blocks of 64 weights
    #[value(name = "gguf-q2_0")]
    Q2,
    /// One file of weights in the layout of the kernels, for this program
    Prepacked,
}

/// Packs a float checkpoint to two bits per weight, or converts a model
///
/// Linear layers are quantized by their mean absolute value; other tensors are copied.
#[derive(Args)]
pub struct Quantize {
    /// Model directory with config.json and safetensors; for `prepacked` any model
    input: PathBuf,
    /// Directory or file to write
    output: PathBuf,
    /// Format to write
    #[arg(long, value_name = "FORMAT", default_value = "packed")]
    format: Format,
    /// Overwrite an existing model, unless it is the input
    #[arg(long)]
    force: bool,
    /// Print one JSON object instead of a line per tensor
    #[arg(long)]
    json: bool,
    /// Quantize the LM head (output projection) to 8 bits; for `prepacked`
    #[arg(long)]
    int8_head: bool,
    #[command(flatten, next_help_heading = "Model files")]
    file: FileArgs,
}

impl Quantize {
    pub fn run(self) -> Result<()> {
        let written = match self.format {
            Format::Prepacked => self.prepacked(),
            _ => self.check().and_then(|()| self.checkpoint()),
        };
        written.map_err(with_remedy)
    }

    /// Writes a checkpoint, with a line per tensor.
    fn checkpoint(&self) -> Result<()> {
        if let Ok(ModelFormat::Gguf(_) | ModelFormat::Prepacked) = identify(&self.input) {
            bail!(
                "{}: is not a directory with config.json and safetensors files, which this format is written from; --format prepacked takes any model",
                display(&self.input)
            );
        }
        let checkpoint = Checkpoint::open(&self.input)?.with_options(self.file.options());
        let bar = progress("packing", "tensors");
        let mut tensors = Vec::new();
        let mut printed = Ok(());
        let written = |tensor: &WrittenTensor| {
            bar.set_length(tensor.total as u64);
            bar.set_position(tensor.done as u64);
            if !self.json && printed.is_ok() {
                printed = bar.suspend(|| say(line(tensor)));
            }
            tensors.push(tensor.clone());
        };
        match self.format {
            Format::Tq2 => self.gguf(&checkpoint, GgufType::Tq2_0, written)?,
            Format::Q2 => self.gguf(&checkpoint, GgufType::Q2_0, written)?,
            Format::Mlx => write_mlx(&checkpoint, &self.output, self.force, written)?,
            _ => write_packed(&checkpoint, &self.output, self.force, written)?,
        }
        bar.finish_and_clear();
        printed?;
        let sum = |bytes: fn(&WrittenTensor) -> u64| tensors.iter().map(bytes).sum::<u64>();
        let before = sum(|tensor| tensor.bytes_before);
        let after = sum(|tensor| tensor.bytes_after);
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

    /// Checks options that only prepacked model files have.
    fn check(&self) -> Result<()> {
        let given = [
            ("int8-head", self.int8_head),
            ("i2s-layout", self.file.i2s_layout.is_some()),
            ("ignore-unused", self.file.ignore_unused),
            ("no-text-check", self.file.no_text_check),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => bail!("--{option} needs --format prepacked"),
            None => Ok(()),
        }
    }

    /// Writes a prepacked model file of any model, with its tokenizer if it has one.
    fn prepacked(&self) -> Result<()> {
        let files = ModelFiles::open_with(resolve(&self.input)?, self.file.options())?;
        if let Err(error) = files.tokenizer() {
            note(format!("the file has no tokenizer and takes token ids only: {error}"));
        }
        with_progress("packing", |progress| {
            let builder = files.builder().int8_head(self.int8_head);
            let builder = builder.ignore_unused(self.file.ignore_unused);
            builder.progress(progress).write_prepacked(&self.output, self.force)
        })?;
        let bytes = self.output.metadata()?.len();
        match self.json {
            true => say(format!("{}\n", json!({ "bytes": bytes })))?,
            false => say(format!("{:.1} MB\n", bytes as f64 / 1e6))?,
        }
        Ok(())
    }

    /// Writes a GGUF file with the directory's tokenizer, if it has one.
    fn gguf(
        &self,
        checkpoint: &Checkpoint,
        kind: GgufType,
        written: impl FnMut(&WrittenTensor),
    ) -> Result<()> {
        let vocabulary = if checkpoint.path().join("tokenizer.json").exists() {
            Some(Tokenizer::from_directory(checkpoint.path())?.to_gguf()?)
        } else {
            note("missing tokenizer.json: the file takes token ids only");
            None
        };
        Ok(write_gguf(checkpoint, vocabulary.as_ref(), &self.output, kind, self.force, written)?)
    }
}

/// Returns an error of an existing output with the option that overwrites it.
pub(crate) fn with_remedy(error: anyhow::Error) -> anyhow::Error {
    let text = text(&error);
    match ["exists already", "has a model already"].iter().any(|end| text.ends_with(end)) {
        true => anyhow!("{text} (--force overwrites it)"),
        false => error,
    }
}

fn line(tensor: &WrittenTensor) -> String {
    let ratio = tensor.bytes_before as f64 / tensor.bytes_after.max(1) as f64;
    let error = tensor
        .error
        .map_or_else(|| "unchanged".into(), |error| format!("relative error {error:.3}"));
    format!("{:<50} {ratio:>6.2} times smaller, {error}\n", tensor.name)
}
