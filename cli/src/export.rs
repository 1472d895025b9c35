//! `bitnet export`: writes a model for another runtime.

use crate::{
    model::{FileArgs, resolve, with_progress},
    quantize::with_remedy,
    say,
};
use anyhow::Result;
use bitnet_coreml::{ExportOptions, Exported, export};
use bitnet_wgpu::formats::open_with;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Format {
    /// Core ML package for macOS 15 and iOS 18, weights of two bits
    Coreml,
}

/// Exports a model for Apple's Core ML
///
/// The package has the functions `decode` and `prefill`, which share a KV cache, and takes token
/// ids. It has not run on Apple hardware yet.
#[derive(Args)]
pub struct Export {
    /// Model to export
    #[arg(value_name = "MODEL")]
    input: PathBuf,
    /// Package to write, a folder named *.mlpackage
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Format to write
    #[arg(long, value_name = "FORMAT", default_value = "coreml")]
    format: Format,
    /// Tokens that the KV cache has room for [default: the model's context, at most 2048]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Tokens of a prefill chunk
    #[arg(long, value_name = "N", default_value_t = 64)]
    prefill: usize,
    /// Overwrite an existing package
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Model files")]
    file: FileArgs,
}

impl Export {
    pub fn run(self) -> Result<()> {
        let path = resolve(&self.input)?;
        let model = open_with(&path, self.file.options())?;
        if !self.file.ignore_unused {
            model.check_unused()?;
        }
        let Format::Coreml = self.format;
        let options =
            ExportOptions::default().context(self.context).prefill(self.prefill).force(self.force);
        let written = with_progress("exporting", |progress| {
            export(&*model, &self.output, &[path], options, progress)
        });
        let written = written.map_err(|error| with_remedy(error.into()))?;
        Ok(say(if self.json { json_of(&written) } else { text_of(&written) })?)
    }
}

fn json_of(written: &Exported) -> String {
    let object = json!({
        "weight_bytes": written.weight_bytes,
        "program_bytes": written.program_bytes,
        "cache_bytes": written.cache_bytes,
        "context": written.context,
        "prefill": written.prefill,
    });
    format!("{object}\n")
}

fn text_of(written: &Exported) -> String {
    format!(
        "{:.1} MB of weights; a KV cache of {} tokens takes {:.1} MB\n",
        written.weight_bytes as f64 / 1e6,
        written.context,
        written.cache_bytes as f64 / 1e6
    )
}
