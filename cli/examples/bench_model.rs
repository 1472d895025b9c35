//! Times whole models with random weights:
//! `cargo run --release --example bench_model -- --config config.json`. It is `bitnet bench`.

use bitnet_cli::bench::{BenchArgs, run};
use clap::Parser;
use std::process::ExitCode;

/// Times prefill and decode of a model with random weights
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    how: BenchArgs,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    bitnet_cli::main(|| run(None, &arguments.how))
}
