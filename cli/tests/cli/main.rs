//! The commands as people run them: the program itself, on the shipped model.

mod arguments;
mod bench;
mod chat;
mod completions;
mod doctor;
mod embed;
mod export;
mod files;
mod info;
mod misread;
#[cfg(feature = "hub")]
mod models;
mod options;
mod output;
mod packaging;
// The page has the commands of all default features.
#[cfg(feature = "hub")]
mod page;
mod perplexity;
mod quantize;
mod run;
mod serve;
#[cfg(unix)]
mod terminal;
mod tokenize;
#[cfg(feature = "train")]
mod train;
mod tune;

use serde_json::Value;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");
const HELDOUT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m/golden/heldout_own.txt");

fn bitnet(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn succeeds(arguments: &[&str]) -> String {
    let output = bitnet(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let text = succeeds(&[arguments, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Fails with one line that names `wanted`, and with no output.
fn fails(arguments: &[&str], expected: &str) {
    let output = bitnet(arguments).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
    let error = errors(&output);
    assert!(
        error.contains("error: ") && error.contains(expected) && !error.contains("panicked"),
        "{arguments:?}: {error}"
    );
}

/// With its input.
fn answers(arguments: &[&str], input: &str) -> String {
    let output = output_of(arguments, input.as_bytes());
    assert!(output.status.success(), "{}", errors(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// With its input, of any bytes.
fn output_of(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = bitnet(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

/// A directory that is gone with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bitnet-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// A copy of the shipped model, of which a file is another.
    fn model(&self, file: &str, change: impl Fn(&[u8]) -> Vec<u8>) -> String {
        for entry in [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ] {
            let bytes = fs::read(Path::new(TALES).join(entry)).unwrap();
            fs::write(self.0.join(entry), if entry == file { change(&bytes) } else { bytes })
                .unwrap();
        }
        self.0.display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
