//! What all commands do with options, a closed output, and odd surroundings.

use crate::{Directory, HELDOUT, TALES, bitnet, errors, fails, json, replaced, succeeds};
use std::{
    fs,
    process::{Command, Stdio},
};

/// The weights of this model cannot be loaded, so that whoever names the option has not tried to.
#[test]
fn options_are_checked_before_the_weights_are_read() {
    let directory = Directory::new("options");
    let broken = directory.model("model.safetensors", |bytes| {
        replaced(bytes, b"model.norm.weight\"", b"model.morn.weight\"")
    });
    fails(&["run", &broken, "x", "--cpu"], "model.norm");
    for (arguments, expected) in [
        (&["run", "x", "--temperature", "nan"][..], "temperature"),
        (&["run", "x", "--temperature", "-1"], "temperature is -1"),
        (&["run", "x", "--top-p", "1.5"], "top_p"),
        (&["run", "x", "--repetition-penalty", "0"], "repetition_penalty"),
        (&["run", "x", "--stop", ""], "stop string"),
        (&["run", "x", "--logit-bias", "2048=1"], "token 2048"),
        (&["run", "x", "--logit-bias", "5=nan"], "a logit bias of NaN for token 5"),
        (&["run", "x", "--logit-bias", "5"], "--logit-bias"),
        (&["chat", "--logit-bias", "king=1"], "`king` is not a token id"),
        (&["run", "x", "--logit-bias", "5=much"], "`much` is not a number"),
        (&["run", "--token-ids", "5,2048"], "token 2048"),
        (&["run", "x", "--token-ids", "5"], "one of them"),
        (&["run", "x", "--session", "no/where/s"], "no/where"),
        (&["perplexity", HELDOUT, "--window", "0"], "--window 0"),
        (&["chat", "--context-length", "0"], "--context-length 0"),
        (
            &["chat", "--context-length", "5", "--system-prompt", "- a long instruction"],
            "--context-length 5",
        ),
        (&["run", "x", "--session", HELDOUT], "is not a saved session"),
        (&["chat", "--min-p", "7"], "min_p"),
        (&["run", "x", "--speculate", "ngram", "--draft-tokens", "0"], "drafts of 0 tokens"),
        (&["chat", "--speculate", TALES, "--draft-tokens", "16"], "drafts of 16 tokens"),
        (&["run", "x", "--draft-tokens", "4"], "--speculate"),
    ] {
        fails(&[&arguments[..1], &[&broken], &arguments[1..], &["--cpu"]].concat(), expected);
    }
    let long = "word ".repeat(600);
    fails(&["run", &broken, &long, "--cpu"], "positions are needed");
}

/// Wrong arguments have an exit status of their own, by which scripts recognize them.
#[test]
fn exit_statuses_tell_wrong_arguments_apart() {
    for (arguments, expected) in [
        (&["--help"][..], 0),
        (&["--version"], 0),
        (&["info", TALES], 0),
        (&["info", "no/such/model"], 1),
        (&["run", "no/such/model", "x", "--cpu"], 1),
        (&["run", TALES, "x", "--cpu", "--temperature=-1"], 1),
        (&["serve", "no/such/model", "--slots", "0"], 1),
        (&[], 2),
        (&["nothing"], 2),
        (&["run"], 2),
        (&["run", TALES, "x", "--nothing"], 2),
        (&["run", TALES, "x", "--max-tokens", "many"], 2),
        (&["run", TALES, "x", "--f16-attention", "--no-tensor-cores"], 2),
        (&["run", TALES, "x", "--f16-attention", "--cpu"], 2),
    ] {
        let output = bitnet(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {}", errors(&output));
        assert!(expected == 0 || !errors(&output).is_empty(), "{arguments:?}");
    }
}

/// Tensor cores change how fast prompts are computed, and only f16 attention what is computed.
#[test]
#[ignore = "needs a GPU"]
fn options_turn_tensor_cores_off() {
    let run = |more: &[&str]| {
        let run = ["run", TALES, HELDOUT, "--gpu", "--greedy", "--max-tokens", "8"];
        json(&[&run[..], more].concat())["text"].clone()
    };
    assert_eq!(run(&["--no-tensor-cores"]), run(&[]));
    assert!(run(&["--f16-attention"]).is_string());
    let small = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/odd");
    let figures = ["bench", small, "--gpu", "--prefill", "2", "--context-lengths", "0"];
    let more = ["--decode-tokens", "1", "--no-tensor-cores"];
    assert_eq!(json(&[&figures[..], &more].concat())["tensor_cores"], false);
}

/// Who reads the output may stop reading.
#[test]
fn a_closed_output_is_no_error() {
    let mut child = bitnet(&["run", TALES, "Once", "--cpu", "--ignore-eos", "--max-tokens", "400"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && !errors(&output).contains("panicked"),
        "{}",
        errors(&output)
    );
    // Nor is one of what is said beside it.
    let arguments = ["run", TALES, "Once", "--cpu", "--greedy", "--max-tokens", "3"];
    let mut child =
        bitnet(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"Once"), "{:?}", output.status);
}

/// A full disk, a pipe in place of a file, names that would command a terminal, and devices that
/// there are not.
#[test]
#[ignore = "needs a GPU"]
fn odd_surroundings_are_errors() {
    if let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") {
        let output = bitnet(&["run", TALES, "Once", "--cpu", "--max-tokens", "3"])
            .stdout(full)
            .output()
            .unwrap();
        assert!(
            !output.status.success() && errors(&output).contains("No space left"),
            "{}",
            errors(&output)
        );
    }
    let directory = Directory::new("odd");
    #[cfg(unix)]
    {
        let pipes = directory.0.join("pipes");
        fs::create_dir_all(&pipes).unwrap();
        assert!(Command::new("mkfifo").arg(pipes.join("config.json")).status().unwrap().success());
        fails(&["run", &pipes.display().to_string(), "x", "--cpu"], "is not a regular file");
        let broken = directory.model("", <[u8]>::to_vec);
        fs::remove_file(directory.path("tokenizer.json")).unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(directory.path("tokenizer.json"))
                .status()
                .unwrap()
                .success()
        );
        fails(&["run", &broken, "x", "--cpu"], "is not a regular file");
        fs::remove_file(directory.path("tokenizer.json")).unwrap();
    }
    // JSON has the escape character as \u001b; 27 bytes either way.
    let commanding = directory.model("model.safetensors", |bytes| {
        replaced(bytes, b"model.norm.weight\"", b"model\\u001b[2J.no\"")
    });
    let shown = succeeds(&["info", &commanding]);
    assert!(!shown.contains('\u{1b}') && shown.contains("u{1b}[2J"), "{shown}");
    for (variable, value) in [("WGPU_BACKEND", "xyzzy"), ("WGPU_ADAPTER_NAME", "no such adapter")] {
        let output = bitnet(&["run", TALES, "x", "--max-tokens", "1"])
            .env(variable, value)
            .output()
            .unwrap();
        assert!(
            !output.status.success() && errors(&output).contains(value),
            "{variable}: {}",
            errors(&output)
        );
    }
    let with_msl = |value: &str, arguments: &[&str]| {
        bitnet(arguments).env("BITNET_WGPU_MSL", value).output().unwrap()
    };
    let wrong = with_msl("yes", &["run", TALES, "x", "--max-tokens", "1"]);
    assert!(
        !wrong.status.success()
            && errors(&wrong).contains("0 (never use MSL) or 1 (always) is needed"),
        "{}",
        errors(&wrong)
    );
    let listed = with_msl("0", &["adapters"]);
    assert!(
        listed.status.success()
            && String::from_utf8_lossy(&listed.stdout).contains("MSL is not used: "),
        "{}",
        errors(&listed)
    );
    // Where a GPU is not under Metal, forcing MSL is an error, by the option and by the variable.
    let adapters = json(&["adapters"]);
    if let Some(other) =
        adapters.as_array().unwrap().iter().find(|adapter| adapter["backend"] != "Metal")
    {
        let index = other["index"].to_string();
        fails(
            &["run", TALES, "x", "--adapter", &index, "--shader-language", "msl"],
            "MSL kernels cannot run on the",
        );
        let forced = with_msl("1", &["run", TALES, "x", "--gpu", "--adapter", &index]);
        assert!(
            !forced.status.success() && errors(&forced).contains("MSL kernels cannot run on the"),
            "{}",
            errors(&forced)
        );
        // An option overrides the variable.
        let unforced = with_msl(
            "1",
            &[
                "run",
                TALES,
                "x",
                "--max-tokens",
                "1",
                "--adapter",
                &index,
                "--shader-language",
                "wgsl",
            ],
        );
        assert!(unforced.status.success(), "{}", errors(&unforced));
    }
    fails(&["run", TALES, "x", "--shader-language", "msl", "--cpu"], "cannot be used with");
    fails(&["run", TALES, "x", "--adapter", "no such adapter"], "no such adapter");
    fails(&["run", TALES, "x", "--adapter", "1000"], "adapter 1000 was asked for; there are");
    fails(&["run", TALES, "x", "--adapter", "0", "--cpu"], "cannot be used with");
    fails(&["run", TALES, "x", "--layer-split", "3,5"], "--adapter");
    fails(&["run", TALES, "x", "--cpu", "--threads", "0"], "threads: 0; a pool has 1 to 1024");
    fails(&["run", TALES, "x", "--gpu", "--threads", "2"], "cannot be used with");
    let split =
        |layers| ["run", TALES, "x", "--adapter", "0", "--adapter", "0", "--layer-split", layers];
    fails(&split("3,6"), "the split [3, 6] does not add up to the 8 layers of the model");
    fails(&split("8"), "the split and the contexts differ in number: 1 and 2");
    fails(&[&split("4,4")[..], &["--cpu-offload", "2"]].concat(), "not both");
    fails(&["bench", TALES, "--adapter", "0", "--adapter", "0", "--profile"], "a single GPU");
}
