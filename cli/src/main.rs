//! `bitnet`: ternary language models on the command line.

use bitnet_cli::command::Arguments;
use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    bitnet_cli::main(|| arguments.run())
}
