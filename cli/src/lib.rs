//! The commands of `bitnet`: each is a module with its arguments and what it does. The examples
//! `perplexity` and `bench_model` call them too.

#![deny(unsafe_code)]

pub mod adapters;
mod allocator;
pub mod bench;
pub mod chat;
pub mod command;
pub mod completions;
pub mod doctor;
pub mod embed;
mod energy;
pub mod export;
pub mod generation;
mod grammar;
pub mod hub;
pub mod info;
pub mod input;
mod interrupt;
mod keep_warm;
pub mod model;
#[cfg(feature = "hub")]
pub mod models;
pub mod perplexity;
mod profile;
pub mod quantize;
pub mod random;
pub mod run;
pub mod serve;
mod style;
pub mod tokenize;
#[cfg(feature = "train")]
pub mod train;
pub mod tune;

use bitnet_wgpu::internals::files::display;
use std::{
    io::{ErrorKind, IsTerminal, Write},
    path::Path,
    process::ExitCode,
};

/// Runs a command and prints its error as text. A closed standard output is no error.
pub fn main(command: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    env_logger::Builder::from_env(
        env_logger::Env::default()
            .default_filter_or("error,bitnet_cli=warn,bitnet_wgpu=warn,bitnet_serve=warn"),
    )
    .init();
    let Err(error) = command() else { return ExitCode::SUCCESS };
    let closed = error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe);
    if closed {
        return ExitCode::SUCCESS;
    }
    note(format!("error: {}", printable(&text(&error))));
    ExitCode::FAILURE
}

/// Returns a count with its noun: `1 token`, `2 tokens`.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Escapes control characters other than line feeds, which names of files and devices may have.
pub fn printable(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(|line| display(Path::new(line)).to_string()).collect();
    lines.join("\n")
}

/// Returns an error with those causes that its own text does not contain.
pub fn text(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}

/// Prints a line to standard error, and ignores failures.
pub fn note(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints a model's text to standard output. A terminal gets no control characters, which would
/// command it.
pub fn say_text(text: &str) -> std::io::Result<()> {
    match std::io::stdout().is_terminal() {
        true => say(style::without_controls(text)),
        false => say(text),
    }
}

/// Prints to standard output, and flushes it.
pub fn say(text: impl std::fmt::Display) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()
}
