//! `bitnet export`

use crate::{Directory, TALES, fails, json, succeeds};
use std::fs;

#[test]
fn export_writes_a_package() {
    let directory = Directory::new("export");
    let package = directory.path("new/tales.mlpackage");
    let export = ["export", "--format", "coreml", TALES, &package, "--context", "96"];
    let written = json(&export);
    // Keys and values of 8 layers, 2 heads of 64, in f16.
    assert_eq!((&written["context"], &written["prefill"]), (&96.into(), &64.into()));
    assert_eq!(written["cache_bytes"], 2 * 8 * 2 * 96 * 64 * 2);
    let folder = format!("{package}/Data/com.apple.CoreML");
    let size = |file: &str| fs::metadata(format!("{folder}/{file}")).unwrap().len();
    assert_eq!(written["weight_bytes"], size("weights/weight.bin"));
    assert_eq!(written["program_bytes"], size("model.mlmodel"));
    fails(&export, "exists already (--force overwrites it)");
    let text = succeeds(&[&export[..], &["--force", "--prefill", "16"]].concat());
    assert!(text.contains("a KV cache of 96 tokens takes 0.4 MB"), "{text}");
}

#[test]
fn export_removes_no_model() {
    let directory = Directory::new("export-model");
    let model = directory.path("model");
    succeeds(&["quantize", TALES, &model]);
    fails(&["export", &model, &model, "--force"], "is not a Core ML package");
    assert!(fs::exists(directory.path("model/config.json")).unwrap());
    let package = directory.path("x.mlpackage");
    fails(&["export", TALES, &package, "--prefill", "600"], "the prefill chunk is 600");
}
