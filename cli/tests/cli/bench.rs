//! `bitnet bench` and `bitnet adapters`

use crate::{Directory, HELDOUT, TALES, fails, json, succeeds};
use serde_json::Value;
use std::fs;

/// Programs read these: figures of a step, and of each kernel in it, with their units.
fn check_keys(bench: &Value, on_gpu: bool, profiled: bool) {
    let positive = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
    let (decode, prefill) = (&bench["decode"][0], &bench["prefill"][0]);
    assert!(
        decode["context"] == 0
            && positive(&decode["tokens_per_second"])
            && positive(&decode["bytes_per_token"]),
        "{bench}"
    );
    assert!(
        prefill["tokens"] == 16
            && positive(&prefill["tokens_per_second"])
            && positive(&prefill["seconds"]),
        "{bench}"
    );
    assert_eq!(bench["gpu_bytes"].is_number(), on_gpu, "{bench}");
    for key in
        ["dispatches_per_token", "gpu_us_per_token", "host_us_per_token", "total_us_per_token"]
    {
        assert_eq!(positive(&bench[key]), profiled, "{key}: {bench}");
    }
    let kernels = bench["kernels"].as_array().map_or(&[][..], Vec::as_slice);
    assert!(
        kernels.iter().all(|kernel| kernel["name"].is_string() && kernel["us"].is_number()),
        "{bench}"
    );
    // All of a step's weights are bound to some kernel, and a rate is of the bytes and the time
    // beside it.
    let of = |kernel: &Value, key: &str| kernel[key].as_f64();
    let rated = |kernel: &&Value| of(kernel, "us").is_some_and(|us| us > 0.0);
    for kernel in kernels.iter().filter(rated) {
        let rate = of(kernel, "bytes").unwrap() / (of(kernel, "us").unwrap() * 1e-6);
        let share = rate / of(bench, "peak_bytes_per_second").unwrap();
        // Above the peak there is neither.
        let is = |key: &str, expected: f64| {
            of(kernel, key)
                .map_or(share > 1.0 - 1e-9, |value| (value / expected - 1.0).abs() < 1e-9)
        };
        assert!(is("bytes_per_second", rate) && is("share_of_peak", share), "{kernel}");
    }
    let bound: f64 = kernels.iter().map(|kernel| of(kernel, "bytes").unwrap()).sum();
    assert!(
        !profiled || bound >= of(bench, "weight_bytes_per_token").unwrap(),
        "{bound} bytes bound: {bench}"
    );
    let dispatches: u64 = kernels.iter().map(|kernel| kernel["count"].as_u64().unwrap()).sum();
    assert_eq!(dispatches, bench["dispatches_per_token"].as_u64().unwrap_or(0), "{bench}");
}

#[test]
#[ignore = "needs a GPU"]
fn bench_and_adapters_give_figures() {
    let small = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/odd");
    let config = format!("{small}/config.json");
    let float_activations =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/qwen3/config.json");
    let directory = Directory::new("bench");
    let (trace, cache) = (directory.path("trace"), directory.path("cache"));
    let more = ["--energy", "--profile", "--trace", &trace, "--kernel-cache", &cache];
    let mut dispatches_of_step = 1;
    for model in [&["--config", &config][..], &["--config", float_activations], &[small]] {
        for device in [&["--cpu"][..], &["--gpu"]] {
            let profiled = (model, device) == (&[small][..], &["--gpu"][..]);
            let arguments = [
                &["bench"][..],
                model,
                device,
                &[
                    "--decode-tokens",
                    "4",
                    "--prefill",
                    "16,9999",
                    "--context-lengths",
                    "0,9999",
                    "--batch-sizes",
                    "3",
                    "--speculate",
                ],
                if profiled { &more[..] } else { &[] },
            ]
            .concat();
            let bench = json(&arguments);
            assert_eq!(bench["kernels"].is_array(), profiled, "{bench}");
            dispatches_of_step =
                bench["dispatches_per_token"].as_u64().unwrap_or(dispatches_of_step);
            assert_eq!(
                (
                    bench["prefill"].as_array().unwrap().len(),
                    bench["decode"].as_array().unwrap().len()
                ),
                (1, 1),
                "{bench}"
            );
            assert!(
                bench["decode"][0]["tokens_per_second"].as_f64().unwrap() > 0.0
                    && bench["weight_bytes_per_token"].as_u64().unwrap() > 20_000,
                "{bench}"
            );
            assert_eq!(bench["peak_bytes_per_second"].is_number(), device == ["--gpu"], "{bench}");
            assert!(
                bench["speculation"][0]["tokens_per_second"].as_f64().unwrap() > 0.0,
                "{bench}"
            );
            check_keys(&bench, device == ["--gpu"], profiled);
            let (energy, source) =
                (&bench["decode"][0]["joules_per_token"], &bench["decode"][0]["energy_source"]);
            assert_eq!(source.is_string(), profiled, "{bench}");
            // Software adapters do not know it; no GPU decodes a token of so small a model for a
            // joule.
            assert!(
                energy.is_null()
                    || energy.as_f64().is_some_and(|joules| joules > 0.0 && joules < 1.0),
                "{bench}"
            );
            let batch = &bench["batches"][0];
            assert!(
                batch["batch_size"] == 3 && batch["tokens_per_second"].as_f64().unwrap() > 0.0,
                "{bench}"
            );
        }
    }
    let traced: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    let dispatches = |name: &str| {
        let is = |event: &&Value| {
            event["cat"] == "submission"
                && event["name"] == name
                && event["args"]["dispatches"].is_u64()
        };
        let submissions = traced["traceEvents"].as_array().unwrap().iter().filter(is);
        submissions.map(|event| event["args"]["dispatches"].as_u64().unwrap()).sum::<u64>()
    };
    // Of 64 tokens, since there are drafts. A step may be submitted in parts.
    let (steps, left) =
        (dispatches("decode") / dispatches_of_step, dispatches("decode") % dispatches_of_step);
    assert!(
        dispatches("prefill") > 0 && (8..=64).contains(&steps) && left == 0,
        "{steps} steps, {left} dispatches"
    );
    fails(&["bench", "--trace", "file"], "--profile");
    fails(&["run", TALES, "Once", "--cpu", "--kernel-cache", "folder"], "cannot be used with");
    fails(&["bench", "--decode-tokens", "0"], "--decode-tokens 0");
    fails(&["bench", "--prefill", "0"], "--prefill 0");
    fails(&["bench", "--batch-sizes", "0"], "--batch-sizes 0");
    fails(&["bench", "--config", HELDOUT], "heldout_own.txt");
    fails(&["bench", "--shape", "bonsai"], "ternary-bonsai-1.7b");
    for option in [
        &["--activations", "int8"][..],
        &["--quantize"],
        &["--i2s-layout", "arm"],
        &["--ignore-unused"],
    ] {
        fails(&[&["bench", "--config", &config][..], option].concat(), "needs a model's files");
    }
    fails(&["bench", "--config", &config, "--shape", "ternary-bonsai-8b"], "cannot be used with");
    let adapters = json(&["adapters"]);
    let adapters = adapters.as_array().unwrap();
    assert!(
        adapters
            .iter()
            .enumerate()
            .all(|(at, adapter)| adapter["index"] == at && adapter["kind"].is_string()),
        "{adapters:?}"
    );
    let chosen: Vec<_> = adapters.iter().filter(|adapter| adapter["chosen"] == true).collect();
    assert!(
        chosen.len() == 1
            && chosen[0]["usable"] == true
            && chosen[0]["score"].as_u64().unwrap() > 0,
        "{adapters:?}"
    );
    assert!(chosen[0]["chosen_reason"].is_string(), "{adapters:?}");
    // What the system does not say is null, and what it says has a source.
    let health = |adapter: &Value| {
        adapter["health"]
            .as_object()
            .unwrap()
            .values()
            .all(|said| said.is_null() || said["source"].is_string())
    };
    assert!(
        adapters.iter().all(health)
            && (chosen[0]["software"] == false || chosen[0]["health"]["power_watts"].is_null()),
        "{adapters:?}"
    );
    // No other driver gives what is kept.
    assert!(chosen[0]["backend"] != "Vulkan" || fs::read_dir(cache).unwrap().count() > 10);
    let text = succeeds(&["adapters"]);
    assert!(text.contains("score") && text.contains("; chosen: "), "{text}");
}
