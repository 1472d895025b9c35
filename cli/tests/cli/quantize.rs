//! `bitnet quantize`

use crate::{Directory, TALES, errors, fails, json, succeeds};
use serde_json::Value;
use std::{fs, process::Command};

/// Files of the program may have a megabyte here: what is longer fails half-way, as on a disk that
/// is full.
#[cfg(unix)]
#[test]
fn a_full_disk_keeps_the_old_model_file() {
    let directory = Directory::new("full");
    let packed = directory.path("packed");
    let limited = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\"",
                env!("CARGO_BIN_EXE_bitnet"),
            ])
            .args(arguments);
        let output = command.output().unwrap();
        let error = errors(&output);
        assert!(
            !output.status.success() && error.contains("error: ") && !error.contains("panicked"),
            "{error}"
        );
    };
    limited(&["quantize", TALES, &packed]);
    assert_eq!(fs::read_dir(&packed).unwrap().count(), 0, "nothing is left");
    succeeds(&["quantize", TALES, &packed]);
    let files = || {
        let mut files: Vec<_> =
            fs::read_dir(&packed).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|file| (fs::read(&file).unwrap(), file)).collect::<Vec<_>>()
    };
    let before = files();
    limited(&["quantize", TALES, &packed, "--force"]);
    assert!(files() == before, "what was there stays");
    let native = directory.path("native.safetensors");
    limited(&["quantize", TALES, &native, "--format", "prepacked"]);
    assert!(!fs::exists(&native).unwrap(), "nothing is there");
}

#[test]
fn quantize_packs_what_info_and_run_read() {
    let directory = Directory::new("quantize");
    // The shipped model is packed already: packing it again changes no code.
    let packed = directory.path("packed");
    let object = json(&["quantize", TALES, &packed]);
    assert_eq!(object["tensors"].as_array().unwrap().len(), 90);
    let info = json(&["info", &packed]);
    assert_eq!((&info["problems"], &info["checked"]), (&Value::Array(vec![]), &Value::Bool(true)));
    assert_eq!((&info["config"]["layers"], &info["tokenizer"]["bos"]), (&8.into(), &2046.into()));
    let bytes: u64 = info["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| tensor["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(Some(bytes), object["bytes_after"].as_u64());
    let greedy = |model: &str| {
        json(&["run", model, "The bear", "--greedy", "--max-tokens", "12", "--cpu"])["token_ids"]
            .clone()
    };
    assert_eq!(greedy(&packed), greedy(TALES));
    // The tokenizer goes with it.
    let gguf = directory.path("model.gguf");
    json(&["quantize", TALES, &gguf, "--format", "gguf-tq2_0"]);
    assert_eq!(
        (greedy(&gguf), &json(&["info", &gguf])["problems"]),
        (greedy(TALES), &Value::Array(vec![]))
    );
    fails(
        &["quantize", TALES, &gguf, "--format", "gguf-q2_0"],
        "exists already (--force overwrites it)",
    );
    succeeds(&["quantize", TALES, &gguf, "--format", "gguf-q2_0", "--force"]);
    assert_eq!(greedy(&gguf), greedy(TALES));
    fails(&["quantize", TALES, &packed], "has a model already (--force overwrites it)");
    assert!(succeeds(&["quantize", TALES, &packed, "--force"]).contains("times smaller"));
}

#[test]
fn a_prepacked_file_runs_as_its_source() {
    let directory = Directory::new("native");
    let greedy = |model: &str| {
        json(&["run", model, "The bear", "--greedy", "--max-tokens", "12", "--cpu"])["token_ids"]
            .clone()
    };
    let (gguf, native, again) =
        (directory.path("model.gguf"), directory.path("new/native"), directory.path("again"));
    let bytes =
        json(&["quantize", TALES, &native, "--format", "prepacked"])["bytes"].as_u64().unwrap();
    assert_eq!(fs::metadata(&native).unwrap().len(), bytes);
    assert_eq!(greedy(&native), greedy(TALES));
    let info = json(&["info", &native]);
    assert_eq!(
        (&info["format"], &info["problems"], &info["config"]["layers"]),
        (&"prepacked model file".into(), &Value::Array(vec![]), &8.into())
    );
    assert_eq!(json(&["info", TALES])["format"], "directory");
    let text = succeeds(&["info", &native]);
    assert!(
        text.contains("format        prepacked model file")
            && text.contains("model.layers.*.mlp.gate_proj+up_proj.codes"),
        "{text}"
    );
    // Of a GGUF file, with its tokenizer, and of a container.
    succeeds(&["quantize", TALES, &gguf, "--format", "gguf-q2_0"]);
    assert_eq!(json(&["info", &gguf])["format"], "GGUF file");
    assert!(succeeds(&["quantize", &gguf, &again, "--format", "prepacked"]).ends_with("MB\n"));
    assert_eq!(greedy(&again), greedy(TALES));
    succeeds(&["quantize", &native, &again, "--format", "prepacked", "--int8-head", "--force"]);
    assert!(
        fs::metadata(&again).unwrap().len() + 400_000 < bytes,
        "the head has half of its bytes"
    );
    assert_eq!(json(&["info", &again])["problems"], Value::Array(vec![]));
    fails(&["quantize", TALES, &native, "--format", "prepacked"], "exists already");
    fails(&["quantize", TALES, &native, "--int8-head", "--force"], "needs --format prepacked");
    fails(
        &["quantize", TALES, &native, "--format", "prepacked", "--format", "gguf-q2_0"],
        "cannot be used multiple times",
    );
    fails(&["quantize", "no/such/model", &native, "--format", "prepacked"], "no/such/model");
    fails(&["run", &format!("{TALES}/model.safetensors"), "a"], "by their directory");
}
