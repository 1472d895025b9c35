//! Tests that need a process of their own.

use std::process::Command;

/// Starts this test binary again, by a shell after `before`, for one test: `module` is its
/// `module_path!()`.
pub fn own_process(before: &str, module: &str, test: &str) -> Command {
    let name = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    };
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{before} exec \"$0\" \"$@\""))
        .arg(std::env::current_exe().expect("a test binary"));
    command.args(["--exact", &name, "--nocapture"]);
    command
}
