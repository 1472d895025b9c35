//! Packs a float checkpoint into the two-bit format of transformers: linear layers are quantised by their absmean, other tensors copied.
//! `cargo run --release --example quantize -- --input DIR --output DIR`

use bitnet_wgpu::formats::{Checkpoint, WrittenTensor, write_packed};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use std::{path::PathBuf, process::ExitCode};

#[derive(Parser)]
#[command(about = "Packs a float BitNet checkpoint to two bits per weight")]
struct Arguments {
    /// Model directory: config.json, and model.safetensors or its shards
    #[arg(long)]
    input: PathBuf,
    /// Directory for the packed model
    #[arg(long)]
    output: PathBuf,
    /// Quantise float weights, though nothing says that the model was trained for it
    #[arg(long)]
    quantize: bool,
    /// Overwrite an existing model in the output directory
    #[arg(long)]
    force: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> bitnet_wgpu::Result<()> {
    let checkpoint = Checkpoint::open(&arguments.input)?.with_quantize(arguments.quantize);
    let bar = ProgressBar::new(checkpoint.names().len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    let (mut before, mut after) = (0, 0);
    write_packed(&checkpoint, &arguments.output, arguments.force, |tensor| {
        (before, after) = (before + tensor.bytes_before, after + tensor.bytes_after);
        bar.set_length(tensor.total as u64);
        bar.set_position(tensor.done as u64);
        // `bar.println` would print nothing without a terminal.
        bar.suspend(|| println!("{}", line(tensor)));
    })?;
    bar.finish_and_clear();
    println!("{:.1} MB to {:.1} MB: {:.2} times smaller", before as f64 / 1e6, after as f64 / 1e6, before as f64 / after.max(1) as f64);
    Ok(())
}

fn line(tensor: &WrittenTensor) -> String {
    let ratio = tensor.bytes_before as f64 / tensor.bytes_after.max(1) as f64;
    let error = tensor.error.map_or_else(|| "unchanged".into(), |error| format!("relative error {error:.3}"));
    format!("{:<50} {ratio:>6.2} times smaller, {error}", tensor.name)
}
