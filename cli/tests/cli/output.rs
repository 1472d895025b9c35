//! Text that people read: no `Debug` formats.

use crate::{TALES, bitnet, errors};
use std::{fs, path::Path};

/// Returns the lines of a source file that format with `Debug`, without tests and debug logs.
fn debug_formats(path: &Path) -> Vec<String> {
    let source = fs::read_to_string(path).unwrap();
    let source = source.split("#[cfg(test)]").next().unwrap();
    let is_debug = |line: &&str| line.contains(":?}") || line.contains(":#?}");
    let lines = source.lines().filter(is_debug).filter(|line| !line.contains("log::debug!"));
    lines.map(|line| format!("{}: {}", path.display(), line.trim())).collect()
}

fn sources(folder: &Path) -> Vec<String> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.extension() {
            _ if path.is_dir() => sources(&path),
            Some(extension) if extension == "rs" => debug_formats(&path),
            _ => Vec::new(),
        })
        .collect()
}

#[test]
fn sources_have_no_debug_formats() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let found = [sources(&root.join("cli/src")), sources(&root.join("serve/src"))].concat();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn output_has_no_debug_formats() {
    let run = ["run", TALES, "Once", "--cpu", "--max-tokens", "2"];
    let json = [&run[..], &["--json"]].concat();
    let odd = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/odd");
    let recurrent = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/qwen35/config.json");
    for arguments in [
        &["info", TALES][..],
        &["info", TALES, "--json"],
        &["info", odd],
        &run,
        &json,
        &[
            "bench",
            odd,
            "--cpu",
            "--prefill",
            "2",
            "--context-lengths",
            "0",
            "--decode-tokens",
            "2",
        ],
        // Random weights of a model with recurrent layers.
        &[
            "bench",
            "--config",
            recurrent,
            "--cpu",
            "--prefill",
            "64",
            "--context-lengths",
            "0",
            "--decode-tokens",
            "2",
        ],
        &["adapters"],
        &["doctor", "--help"],
        &["run", "--help"],
        &["serve", "--help"],
    ] {
        let output = bitnet(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), errors(&output));
        for debug in ["Some(", "None", "MaxTokens", "Relu2", "Wgsl", "kernels in rust"] {
            assert!(!text.contains(debug), "{arguments:?} prints `{debug}`: {text}");
        }
    }
}
