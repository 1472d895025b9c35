//! Models that are read in the wrong way, or are another file than their names say.

use crate::{Directory, TALES, bitnet, errors, fails, output_of, replaced, succeeds};
use serde_json::Value;
use std::fs;

const RUN: [&str; 4] = ["Once", "--cpu", "--max-tokens", "1"];

/// Runs a model, and returns what it says on standard error.
fn said(model: &str, more: &[&str]) -> String {
    let output = bitnet(&[&["run", model], &RUN[..], more].concat()).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    errors(&output)
}

/// The model with the packed weights of each matrix in the opposite order.
fn shuffled(bytes: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut bytes = bytes.to_vec();
    for tensor in header.as_object().unwrap().values().filter(|tensor| tensor["dtype"] == "U8") {
        let [start, end] =
            [0, 1].map(|n| 8 + length + tensor["data_offsets"][n].as_u64().unwrap() as usize);
        bytes[start..end].reverse();
    }
    bytes
}

#[test]
fn misread_model_is_warned_of() {
    let directory = Directory::new("misread");
    let model = directory.model("model.safetensors", shuffled);
    let noise = |said: &str| said.contains("scores like noise") && said.contains("--no-text-check");
    let warned = said(&model, &[]);
    assert!(noise(&warned), "{warned}");
    for (model, more) in [(model.as_str(), &["--no-text-check"][..]), (TALES, &[])] {
        let silent = said(model, more);
        assert!(!silent.contains("noise"), "{silent}");
    }
}

/// The scales of this model are small, so weights are multiplied by them.
#[test]
fn missing_quantization_config_is_made_up_for() {
    let directory = Directory::new("unsaid");
    let model = directory.model("config.json", |bytes| {
        replaced(bytes, b"\"quantization_config\"", b"\"another_config\"")
    });
    let run = |model: &str, more: &[&str]| succeeds(&[&["run", model], &RUN[..], more].concat());
    let expected = run(TALES, &["--greedy"]);
    assert_eq!(run(&model, &["--greedy"]), expected);
    assert_eq!(run(&model, &["--greedy", "--weight-scale", "multiply"]), expected);
}

#[test]
fn gguf_is_converted_from_directories_only() {
    let directory = Directory::new("from-gguf");
    let (gguf, other) = (directory.path("model.gguf"), directory.path("other.gguf"));
    succeeds(&["quantize", TALES, &gguf, "--format", "gguf-q2_0"]);
    fails(
        &["quantize", &gguf, &other, "--format", "gguf-tq2_0"],
        "--format prepacked takes any model",
    );
    assert!(fs::metadata(&other).is_err());
    // A folder of one GGUF file is that file.
    let run = |model: &str| succeeds(&[&["run", model, "--greedy"], &RUN[..]].concat());
    assert_eq!(run(&directory.path("")), run(&gguf));
}

#[test]
fn marks_before_texts_are_dropped() {
    let prompt = |bytes: &[u8]| {
        let output =
            output_of(&["run", TALES, "-", "--cpu", "--greedy", "--max-tokens", "3"], bytes);
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            errors(&output),
        )
    };
    let (plain, marked) = (prompt(b"Once"), prompt("\u{feff}Once".as_bytes()));
    assert!(plain.0 && plain.1 == marked.1, "{marked:?}");
    let (success, _, error) = prompt(b"\xff\xfeO\0n\0c\0e\0");
    assert!(!success && error.contains("UTF-16: save it as UTF-8"), "{error}");
}
