//! `bitnet tune`

use crate::{Directory, fails, json, succeeds};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/qwen3");

#[test]
#[ignore = "needs a GPU"]
fn tune_tries_thresholds_of_used_kernels() {
    let directory = Directory::new("tune");
    let cache = directory.path("cache");
    let text = succeeds(&["tune", MODEL, "--rounds", "1", "--verbose", "--kernel-cache", &cache]);
    assert!(text.contains("decode step of a batch of 4 after "), "{text}");
    assert!(text.contains("prompt of 32 tokens"), "{text}");
    // Its activations are floats: no threshold for rows in int8 matters.
    let of = |key: &str| text.split(&format!("\n{key}: ")).nth(1).unwrap().lines().next().unwrap();
    let unused = "no other value changes what this model dispatches here";
    assert!(of("gemv_tall_tile_rows").ends_with(unused), "{text}");
    assert!(of("fused_block_float_tokens").contains("; tried on "), "{text}");
    let bench = ["bench", MODEL, "--gpu", "--kernel-cache", &cache, "--prefill", "1"];
    let bench = json(&[&bench[..], &["--context-lengths", "0", "--decode-tokens", "1"]].concat());
    assert_eq!(bench["tuned"], text.contains("\nsaved in "), "{text}{bench}");
}

#[test]
fn tune_needs_a_gpu() {
    fails(&["tune", MODEL, "--cpu"], "--cpu: tune measures kernels of a GPU");
    fails(&["tune", "no/where"], "no/where");
    fails(&["tune", MODEL, "--rounds", "0"], "--rounds");
}
