//! `bitnet`: ternary language models on the command line.

use bitnet_cli::{command::Arguments, renamed};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Arguments = renamed::parse();
    bitnet_cli::main(|| arguments.run())
}
