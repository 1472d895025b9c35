//! `bitnet train`

use crate::{Directory, HELDOUT, TALES, answers, bitnet, errors, fails, json, succeeds};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
};

/// A directory with the config.json of a small model for the tokenizer of the shipped one.
fn config(directory: &Directory) -> String {
    let folder = directory.path("config");
    fs::create_dir_all(&folder).unwrap();
    let json = json!({
        "model_type": "bitnet", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 2048,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "bos_token_id": 2046,
        "eos_token_id": 2047,
    });
    fs::write(Path::new(&folder).join("config.json"), json.to_string()).unwrap();
    folder
}

/// What all runs have in common.
fn arguments<'a>(config: &'a str, out: &'a str) -> Vec<&'a str> {
    vec![
        "train",
        "--config",
        config,
        "--tokenizer",
        TALES,
        "--data",
        HELDOUT,
        "--out",
        out,
        "--steps",
        "6",
        "--batch",
        "2",
        "--context",
        "16",
        "--held-out",
        "4",
    ]
}

/// The steps of a log and their losses.
fn log(out: &str) -> Vec<(u64, f64)> {
    let text = fs::read_to_string(Path::new(out).join("log.jsonl")).unwrap();
    let line = |line: &str| {
        let json: Value = serde_json::from_str(line).unwrap();
        (json["step"].as_u64().unwrap(), json["loss"].as_f64().unwrap())
    };
    text.lines().map(line).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn a_trained_model_runs_and_resumes() {
    let directory = Directory::new("train");
    let config = config(&directory);
    let [whole, parts] = ["whole", "parts"].map(|name| directory.path(name));
    let trained = json(&arguments(&config, &whole));
    let loss = trained["held_out_loss"].as_f64().unwrap();
    assert!((7.0..8.0).contains(&loss), "{trained}");
    assert_eq!((&trained["held_out_tokens"], &trained["skipped"]), (&json!(64), &json!(0)));
    assert_eq!(log(&whole).len(), 6);
    let options = ["--cpu", "--greedy", "--ignore-eos", "--max-tokens", "3"];
    assert!(!answers(&[&["run", &whole, "Once"][..], &options].concat(), "").is_empty());

    // A run of which the last half is computed again has the same bits.
    let run = [&arguments(&config, &parts)[..], &["--save-every", "3", "--keep", "9"]].concat();
    succeeds(&run);
    let checkpoints = Path::new(&parts).join("checkpoints");
    fs::remove_dir_all(checkpoints.join("step-00000006")).unwrap();
    let resumed = succeeds(&[&run[..], &["--resume"]].concat());
    assert!(resumed.contains("step     6: loss "), "{resumed}");
    assert!(resumed.contains("perplexity ") && !resumed.contains("step     3:"), "{resumed}");
    assert_eq!(log(&parts), log(&whole));
    let weights = |out: &str| fs::read(Path::new(out).join("model.safetensors")).unwrap();
    assert!(weights(&parts) == weights(&whole));

    fails(&run, "has checkpoints: --resume goes on from the last one");
    let other = [&run[..], &["--resume", "--seed", "1"]].concat();
    fails(&other, "was made with another seed");
    fs::remove_dir_all(checkpoints).unwrap();
    fails(&run, "has a model or a log already (--force overwrites it)");
    fails(&[&run[..], &["--resume"]].concat(), "has a model or a log already");
}

/// As `head` does, a reader leaves, and the next line cannot be written.
#[test]
#[ignore = "needs a GPU"]
fn a_closed_output_leaves_a_checkpoint() {
    let directory = Directory::new("train-closed");
    let config = config(&directory);
    let [whole, parts] = ["whole", "parts"].map(|name| directory.path(name));
    succeeds(&arguments(&config, &whole));
    let run = [&arguments(&config, &parts)[..], &["--log-every", "1"]].concat();
    let mut child = bitnet(&run).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().starts_with("step     1: ")).unwrap().unwrap();
    drop(lines);
    child.wait().unwrap();
    assert!(!Path::new(&parts).join("config.json").exists(), "it ended before the last step");
    let resumed = succeeds(&[&run[..], &["--resume"]].concat());
    assert!(!resumed.contains("step     1: "), "{resumed}");
    let weights = |out: &str| fs::read(Path::new(out).join("model.safetensors")).unwrap();
    assert!(weights(&parts) == weights(&whole));
    assert_eq!(log(&parts), log(&whole));
}

/// A file of conversations.
fn chats(directory: &Directory) -> String {
    let file = directory.path("chats.jsonl");
    let line = |word: &str| {
        let message = |role: &str, content: String| json!({"role": role, "content": content});
        let question = message("user", format!("Where is the {word}?"));
        let answer = message("assistant", format!("Arr, the {word} is at sea."));
        json!({"messages": [question, answer]}).to_string()
    };
    fs::write(&file, ["king", "queen", "cat", "dog"].map(line).join("\n")).unwrap();
    file
}

#[test]
#[ignore = "needs a GPU"]
fn a_model_is_finetuned_and_adapters_are_merged() {
    let directory = Directory::new("finetune");
    let (config, data) = (config(&directory), chats(&directory));
    let [base, tuned, adapter] = ["base", "tuned", "adapter"].map(|name| directory.path(name));
    succeeds(&arguments(&config, &base));
    let run = |out| {
        let run =
            ["finetune", &base, "--data", &data, "--out", out, "--steps", "4", "--batch", "2"];
        let more = ["--context", "24", "--held-out", "1", "--lr", "1e-2"];
        [&run[..], &more].concat()
    };
    let evaluated = [&run(&tuned)[..], &["--eval-data", HELDOUT]].concat();
    let report = json(&evaluated);
    let scores = report["scores"].as_array().unwrap();
    assert_eq!(scores.len(), 2);
    for score in scores {
        let loss = |name: &str| score[name].as_f64().unwrap();
        assert!(loss("loss_trained") < loss("loss_before"), "{report}");
        // Tables are written in bf16.
        assert!((loss("loss_written") - loss("loss_trained")).abs() < 0.02, "{report}");
    }
    let options = ["--cpu", "--greedy", "--ignore-eos", "--max-tokens", "3"];
    assert!(!answers(&[&["run", &tuned, "Once"][..], &options].concat(), "").is_empty());

    let lora = [&run(&adapter)[..], &["--lora", "2", "--eval-every", "2"]].concat();
    let output = succeeds(&lora);
    assert!(output.contains("step     2: held-out loss "), "{output}");
    assert!(
        output.contains("held-out text: perplexity ") && output.contains(" with adapters\n"),
        "{output}"
    );
    let file = |name: &str| Path::new(&adapter).join(name);
    assert!(file("adapter_model.safetensors").exists() && !file("config.json").exists());
    // No steps are left, and the adapters become a part of the model.
    let merged = succeeds(&[&lora[..], &["--resume", "--merge"]].concat());
    assert!(merged.contains(" before, ") && merged.contains(" as written\n"), "{merged}");
    assert!(!answers(&[&["run", &adapter, "Once"][..], &options].concat(), "").is_empty());
    assert!(!file("adapter_config.json").exists() && file("adapter/adapter_config.json").exists());
    fails(&lora, "has checkpoints");
    fails(
        &[&lora[..], &["--force", "--lora-targets", "head"]].concat(),
        "a target of LoRA is head",
    );
    fails(
        &["finetune", "no/where", "--data", &data, "--out", &tuned, "--steps", "1"],
        "no/where is no model directory",
    );
    let bad = directory.path("bad.jsonl");
    fs::write(&bad, "{\"messages\": [{\"content\": \"Hi\"}]}\n").unwrap();
    let bad = [&without(&run(&tuned), "--data")[..], &["--data", &bad, "--force"]].concat();
    fails(&bad, "bad.jsonl:1: message 1: has no string `role`");
}

/// Its text is written by its teacher, which a run that goes on does not do again.
#[test]
#[ignore = "needs a GPU"]
fn a_student_is_distilled_and_resumes() {
    let directory = Directory::new("distil");
    let config = config(&directory);
    let [teacher, whole, parts] = ["teacher", "whole", "parts"].map(|name| directory.path(name));
    succeeds(&arguments(&config, &teacher));
    let run = |out| {
        let run = ["distil", &teacher, "--config", &config, "--out", out, "--steps", "4"];
        let sizes = ["--batch", "2", "--context", "16", "--teacher-tokens", "400"];
        let more =
            ["--eval-every", "2", "--sample", "Once upon", "--save-every", "2", "--keep", "9"];
        [&run[..], &sizes, &more].concat()
    };
    let report = json(&run(&whole));
    let score = &report["scores"][0];
    for name in ["loss_teacher", "loss_trained", "loss_written"] {
        assert!((7.0..8.5).contains(&score[name].as_f64().unwrap()), "{report}");
    }
    let read = |out: &str, name: &str| fs::read(Path::new(out).join(name)).unwrap();
    let log = String::from_utf8(read(&whole, "log.jsonl")).unwrap();
    assert_eq!(log.matches("\"sample\":\"Once upon").count(), 2, "{log}");

    let output = succeeds(&run(&parts));
    assert!(output.contains(" of the teacher, ") && output.contains("step     2: Once upon"));
    fs::remove_dir_all(Path::new(&parts).join("checkpoints/step-00000004")).unwrap();
    let text = Path::new(&parts).join("teacher.jsonl");
    let written = fs::metadata(&text).unwrap().modified().unwrap();
    succeeds(&[&run(&parts)[..], &["--resume"]].concat());
    assert_eq!(fs::metadata(&text).unwrap().modified().unwrap(), written);
    for name in ["model.safetensors", "teacher.jsonl", "tokenizer.json"] {
        assert!(read(&whole, name) == read(&parts, name), "{name} differs");
    }
    let other = [&run(&parts)[..], &["--resume", "--temperature", "3"]].concat();
    fails(&other, "was made with another temperature");
    // A checkpoint of a model whose config.json does not say that it is ternary.
    let llama = fs::read_to_string(Path::new(&config).join("config.json")).unwrap();
    let (plain, base) = (directory.path("llama"), directory.path("base"));
    fs::create_dir_all(&plain).unwrap();
    fs::write(Path::new(&plain).join("config.json"), llama.replace("bitnet", "llama")).unwrap();
    succeeds(&arguments(&plain, &base));
    let checkpoint = format!("{base}/checkpoints/step-00000006");
    let floats = [&["distil", &checkpoint][..], &run(&parts)[2..]].concat();
    fails(&floats, "has float weights, with which it writes no text: --data is needed");
}

#[test]
#[ignore = "needs a GPU"]
fn a_folder_has_one_run() {
    let directory = Directory::new("train-locked");
    let (config, out) = (config(&directory), directory.path("out"));
    let lock = bitnet_train::FolderLock::new(&out).unwrap();
    let run = arguments(&config, &out);
    fails(&run, "another run writes to it");
    drop(lock);
    succeeds(&run);
}

/// All of these are found before a GPU is looked for.
#[test]
fn impossible_runs_are_refused() {
    let directory = Directory::new("train-refused");
    let (config, out) = (config(&directory), directory.path("out"));
    let bad = directory.path("bad.jsonl");
    fs::write(&bad, "{\"text\": \"fine\"}\n{\"text\": 1}\n").unwrap();
    let run = arguments(&config, &out);
    // It does not exist yet.
    let within = format!("{HELDOUT}/models/new");
    for (more, expected) in [
        (&["--batch", "0"][..], "the batch is 0"),
        (&["--context", "65"], "the context is 65; 1 to 64 tokens"),
        (&["--lr", "nan"], "the learning rate is NaN"),
        (&["--warmup", "7"], "the warm-up is 7"),
        (&["--activations", "float"], "the activation type is float"),
        (&["--save-every", "0"], "--save-every 0"),
        (&["--held-out", "0"], "--held-out 0"),
        (&["--held-out", "1000"], "1000 windows of 16 are held out"),
        (&["--out", &config], "is a directory of the input"),
        (&["--out", &within], "is in a directory of --data"),
    ] {
        fails(&[&without(&run, more[0])[..], more].concat(), expected);
    }
    fails(
        &[&without(&run, "--data")[..], &["--data", &bad]].concat(),
        "bad.jsonl:2: `text` is not a string",
    );
    fails(&[&without(&run, "--config")[..], &["--config", "no/where"]].concat(), "no/where");
    fails(
        &[&without(&run, "--tokenizer")[..], &["--tokenizer", &config]].concat(),
        "tokenizer.json",
    );
    let gemma = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/gemma3");
    fails(
        &[&without(&run, "--config")[..], &["--config", gemma]].concat(),
        "attention within a sliding window cannot be trained",
    );
    let distil = |more: &[&'static str]| -> Vec<&str> {
        [&["distil", TALES][..], &without(&run[1..], "--tokenizer"), more].concat()
    };
    fails(&distil(&["--temperature", "0"]), "the temperature is 0");
    fails(&distil(&["--teacher-tokens", "9"]), "cannot be used with");
    let long = ["--eval-every", "1", "--sample", "a b c d e f g h i j k l m n o p"];
    fails(&distil(&long), "--sample: has ");
    let narrow = directory.path("narrow");
    fs::create_dir_all(&narrow).unwrap();
    let json = fs::read_to_string(Path::new(&config).join("config.json")).unwrap();
    let json = json.replace("2048", "2050");
    fs::write(Path::new(&narrow).join("config.json"), json).unwrap();
    let other = [&without(&distil(&[]), "--config")[..], &["--config", &narrow]].concat();
    fails(&other, "has a vocab_size of 2048, and the student one of 2050");
    let output = bitnet(&without(&run, "--config")).output().unwrap();
    assert!(errors(&output).contains("--config <DIR>"), "{}", errors(&output));
    assert!(!Path::new(&out).join("model.safetensors").exists());
}

/// The arguments without an option and its value.
fn without<'a>(arguments: &[&'a str], option: &str) -> Vec<&'a str> {
    match arguments.iter().position(|argument| *argument == option) {
        Some(at) => [&arguments[..at], &arguments[at + 2..]].concat(),
        None => arguments.to_vec(),
    }
}
