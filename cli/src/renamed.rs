//! Options of older releases, which are accepted with a notice until 0.2.0.

use crate::note;
use clap::{Command, Parser};
use std::ffi::{OsStr, OsString};

/// Old options and what they are now, in each command that has the new option.
pub const RENAMED: [(&str, &str); 19] = [
    ("--cache", "--kernel-cache"),
    ("--context", "--context-length"),
    ("--contexts", "--context-lengths"),
    ("--embedding-tokens", "--max-embedding-tokens"),
    ("--f16-cache", "--kv-type=f16"),
    ("--f32-cache", "--kv-type=f32"),
    ("--grace", "--shutdown-timeout"),
    ("--half-attention", "--f16-attention"),
    ("--i2s", "--i2s-layout"),
    ("--ids", "--token-ids"),
    ("--language", "--shader-language"),
    ("--name", "--model-name"),
    ("--native", "--format=prepacked"),
    ("--no-matrix-units", "--no-tensor-cores"),
    ("--offload", "--cpu-offload"),
    ("--sequences", "--batch-sizes"),
    ("--split", "--layer-split"),
    ("--system", "--system-prompt"),
    ("--tokens", "--decode-tokens"),
];

/// Parses the arguments of this process. Renamed options are accepted, with a notice on standard
/// error.
pub fn parse<P: Parser>() -> P {
    let (arguments, notices) = replaced(std::env::args_os(), &P::command());
    notices.into_iter().for_each(note);
    P::parse_from(arguments)
}

/// Replaces renamed options, and returns the notices.
pub fn replaced(
    arguments: impl IntoIterator<Item = OsString>,
    command: &Command,
) -> (Vec<OsString>, Vec<String>) {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let subcommand = arguments.get(1).and_then(|name| command.find_subcommand(name));
    let command = subcommand.unwrap_or(command);
    let mut notices = Vec::new();
    let mut is_value = false;
    for argument in &mut arguments {
        if argument == "--" {
            break;
        }
        let new = if is_value { None } else { replacement(argument, command) };
        is_value = takes_any_value(argument, command);
        if let Some((old, new, value)) = new {
            notices.push(format!("`{old}` is now `{}`", new.replace('=', " ")));
            *argument = format!("{new}{value}").into();
        }
    }
    (arguments, notices)
}

/// Returns the old name, the new one, and what follows in the same argument.
fn replacement<'a>(
    argument: &'a OsStr,
    command: &Command,
) -> Option<(&'static str, &'static str, &'a str)> {
    let argument = argument.to_str()?;
    let end = argument.find('=').unwrap_or(argument.len());
    let (name, value) = argument.split_at(end);
    let &(old, new) = RENAMED.iter().find(|(old, new)| *old == name && has(command, new))?;
    Some((old, new, value))
}

/// Tests whether a command has an option, which is `--name` or `--name=value`.
pub fn has(command: &Command, option: &str) -> bool {
    let name = option.split('=').next().and_then(|option| option.strip_prefix("--"));
    command.get_arguments().any(|argument| argument.get_long() == name)
}

/// Tests whether the next argument is a value of this option even if it begins with a hyphen.
fn takes_any_value(argument: &OsStr, command: &Command) -> bool {
    let name = argument.to_str().and_then(|argument| argument.strip_prefix("--"));
    name.is_some_and(|name| {
        command
            .get_arguments()
            .any(|known| known.get_long() == Some(name) && known.is_allow_hyphen_values_set())
    })
}
