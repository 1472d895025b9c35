//! `bitnet run`

use crate::{Directory, TALES, answers, bitnet, errors, fails, json, succeeds};
use serde_json::Value;
use std::{fs, process::Stdio};

#[test]
#[ignore = "needs a GPU"]
fn run_continues_a_text() {
    let run = |more: &[&str]| {
        json(&[&["run", TALES, "Once upon a time", "--max-tokens", "12"], more].concat())
    };
    let greedy = run(&["--greedy"]);
    assert_eq!(greedy["stop_reason"], "max_tokens");
    let text = succeeds(&["run", TALES, "Once upon a time", "--max-tokens", "12", "--greedy"]);
    assert_eq!(text, format!("Once upon a time{}\n", greedy["text"].as_str().unwrap()));
    assert_eq!(
        answers(&["run", TALES, "-", "--max-tokens", "12", "--greedy"], "Once upon a time"),
        text
    );
    // On two devices, of one adapter here: what is on which is said, and the text is that of one.
    let [one, two] =
        [&["--adapter", "0"][..], &["--adapter", "0", "--adapter", "0", "--layer-split", "3,5"]]
            .map(|more| {
                let output = bitnet(
                    &[&["run", TALES, "Once upon a time", "--max-tokens", "12", "--greedy"], more]
                        .concat(),
                )
                .output()
                .unwrap();
                (output.stdout.clone(), errors(&output))
            });
    assert!(
        one.0 == two.0
            && two.1.contains("layers 1 to 3 of 8: ")
            && two.1.contains("layers 4 to 8 of 8: "),
        "{one:?}, {two:?}"
    );
    assert_eq!(
        answers(&["run", TALES, "--max-tokens", "12", "--greedy"], "Once upon a time\n"),
        text
    );
    let penalised =
        run(&["--greedy", "--presence-penalty", "-0.5", "--stop", "- x", "--stop", "--"]);
    assert_eq!(penalised["token_ids"].as_array().unwrap().len(), 12);
    // The first token is forbidden, and another wanted above all.
    let first = |run: &Value| run["token_ids"][0].as_u64().unwrap();
    let (forbidden, expected) = (format!("{}=-inf", first(&greedy)), "7=1000");
    assert_ne!(first(&run(&["--greedy", "--logit-bias", &forbidden])), first(&greedy));
    assert_eq!(
        run(&["--greedy", "--logit-bias", &forbidden, "--logit-bias", expected])["token_ids"],
        Value::from(vec![7; 12])
    );
    // It samples unless it is told not to, the same for a seed.
    assert_eq!(run(&["--cpu"])["token_ids"], run(&["--cpu", "--seed", "0"])["token_ids"]);
    assert_ne!(run(&["--cpu"])["token_ids"], run(&["--cpu", "--seed", "1"])["token_ids"]);
    assert_ne!(run(&["--cpu"])["token_ids"], greedy["token_ids"]);
    assert_eq!(run(&["--cpu"])["token_ids"], run(&["--cpu", "--threads", "3"])["token_ids"]);
    let ids = |ids: &str| {
        json(&["run", TALES, "--token-ids", ids, "--greedy", "--max-tokens", "3", "--cpu"])["token_ids"].clone()
    };
    assert_eq!(ids("2046,7,9").as_array().unwrap().len(), 3);
    let stopped = run(&["--greedy", "--stop", "king"]);
    assert!(
        stopped["stop_reason"] == "stop_string"
            && !stopped["text"].as_str().unwrap().contains("king"),
        "{stopped}"
    );
    assert_eq!(run(&["--greedy", "--gpu"])["shader_language"], "WGSL");
}

/// Guesses change nothing but the time, and `--json` counts them.
#[test]
fn speculation_is_counted() {
    let run = |more: &[&str]| {
        json(&[&["run", TALES, "Once upon a time", "--max-tokens", "24", "--cpu"], more].concat())
    };
    let plain = run(&[]);
    assert!(plain["speculation"].is_null());
    let own = run(&["--speculate", TALES, "--draft-tokens", "4"]);
    let count = |run: &Value, what: &str| run["speculation"][what].as_u64().unwrap();
    assert_eq!(own["token_ids"], plain["token_ids"]);
    assert!(
        count(&own, "accepted") == count(&own, "drafted") && count(&own, "passes") > 4,
        "{own}"
    );
    let ngram = run(&["--speculate", "ngram"]);
    assert!(
        ngram["token_ids"] == plain["token_ids"]
            && count(&ngram, "drafted") >= count(&ngram, "accepted"),
        "{ngram}"
    );
    let talk = |more: &[&str]| -> Vec<Value> {
        let arguments =
            [&["chat", TALES, "--max-tokens", "12", "--cpu", "--json", "--seed", "0"], more]
                .concat();
        answers(&arguments, "Tell me a tale.\nAnother\n")
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let (plain, own) = (talk(&[]), talk(&["--speculate", TALES]));
    for (plain, own) in plain.iter().zip(&own) {
        assert_eq!(plain["content"], own["content"]);
        assert!(plain["speculation"].is_null() && count(own, "accepted") > 0, "{own}");
    }
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/newer");
    fails(&["run", TALES, "x", "--speculate", other], "512 tokens, not the model's 2048");
    fails(&["run", TALES, "x", "--speculate", "no/such/model"], "no/such/model");
}

/// Of its prompt and of a step in the middle of the text: as tables beside the text, and in the
/// object.
#[test]
#[ignore = "needs a GPU"]
fn a_texts_kernels_are_timed() {
    let run = [
        "run",
        TALES,
        "--token-ids",
        "2046,7,9,12,5",
        "--gpu",
        "--greedy",
        "--max-tokens",
        "6",
        "--ignore-eos",
    ];
    let (plain, profiled) = (json(&run), json(&[&run[..], &["--profile"]].concat()));
    assert!(
        plain["profile"].is_null() && plain["token_ids"] == profiled["token_ids"],
        "{plain} {profiled}"
    );
    let profile = &profiled["profile"];
    let peak = profile["peak_bytes_per_second"].as_f64().unwrap();
    for (what, named) in
        [("prompt", "prompt of 5 tokens"), ("step", "decode step of a batch of 1 after 8 tokens")]
    {
        let of = &profile[what];
        assert!(
            of["what"] == named
                && of["gpu_us"].as_f64().unwrap() > 0.0
                && of["host_us"].as_f64().unwrap() > 0.0,
            "{of}"
        );
        let kernels = of["kernels"].as_array().unwrap();
        let sum =
            |key: &str| kernels.iter().map(|kernel| kernel[key].as_f64().unwrap()).sum::<f64>();
        // All dispatches are some kernel's. They read the weights of eight layers, two bits each.
        assert!(sum("count") == of["dispatches"].as_f64().unwrap() && sum("bytes") > 5e6, "{of}");
        for kernel in kernels.iter().filter(|kernel| kernel["share_of_peak"].is_number()) {
            let rate = kernel["bytes"].as_f64().unwrap() / (1e-6 * kernel["us"].as_f64().unwrap());
            let share = kernel["share_of_peak"].as_f64().unwrap();
            assert!((share * peak / rate - 1.0).abs() < 1e-9 && share <= 1.0, "{kernel}");
        }
    }
    let output = bitnet(&[&run[..], &["--profile"]].concat()).output().unwrap();
    let (text, told) = (String::from_utf8(output.stdout.clone()).unwrap(), errors(&output));
    assert_eq!(text.trim_end(), plain["text"].as_str().unwrap().trim_end());
    for part in [
        "prompt of 5 tokens, ",
        "decode step of a batch of 1 after 8 tokens, ",
        "% of peak  ",
        " dispatches on the GPU",
    ] {
        assert!(told.contains(part), "{part:?}: {told}");
    }
    fails(&["run", TALES, "x", "--cpu", "--profile"], "--profile: needs a GPU");
    fails(&["run", TALES, "x", "--adapter", "0", "--adapter", "0", "--profile"], "a single GPU");
    fails(&["bench", TALES, "--cpu", "--profile"], "--profile: needs a GPU");
}

#[test]
#[ignore = "needs a GPU"]
fn layers_that_do_not_fit_are_offloaded() {
    let run = |options: &[&str]| {
        json(
            &[
                &["run", TALES, "Once upon a time", "--gpu", "--greedy", "--max-tokens", "4"],
                options,
            ]
            .concat(),
        )
    };
    let expected = run(&[])["token_ids"].clone();
    let limit = ["--memory-limit", "6M"];
    assert_eq!(run(&[&["--cpu-offload", "auto"], &limit[..]].concat())["token_ids"], expected);
    fails(
        &[&["run", TALES, "x", "--gpu"], &limit[..]].concat(),
        "over the memory limit of 6291456",
    );
    let output = bitnet(&["run", TALES, "x", "--gpu", "--max-tokens", "1", "--cpu-offload", "6"])
        .output()
        .unwrap();
    assert!(errors(&output).contains("6 of 8 layers stay in host memory"), "{}", errors(&output));
    fails(&["run", TALES, "x", "--gpu", "--cpu-offload", "9"], "9 layers; the model has 8");
    fails(&["run", TALES, "x", "--cpu-offload", "some"], "a number of layers, or `auto`");
    fails(&["run", TALES, "x", "--gpu", "--cpu-offload", "auto"], "needs --memory-limit BYTES");
    fails(&["run", TALES, "x", "--memory-limit", "99999999999G"], "a whole number of bytes");
}

#[test]
fn a_session_in_a_file_goes_on() {
    let directory = Directory::new("session");
    let file = directory.path("session.safetensors");
    let run = |prompt: &str, more: &[&str]| {
        json(&[&["run", TALES, prompt, "--greedy", "--max-tokens", "20", "--cpu"], more].concat())["token_ids"].clone()
    };
    assert_eq!(run("Once upon a time", &["--session", &file]), run("Once upon a time", &[]));
    let saved = fs::metadata(&file).unwrap().len();
    assert_eq!(
        run("Once upon a time, a bear", &["--session", &file]),
        run("Once upon a time, a bear", &[])
    );
    assert!(fs::metadata(&file).unwrap().len() > saved);
    fails(
        &["run", TALES, "x", "--cpu", "--session", &directory.path("no/where")],
        "no such directory",
    );
    for other in
        [format!("{TALES}/model.safetensors"), format!("{TALES}/config.json"), directory.path("")]
    {
        fails(&["run", TALES, "x", "--cpu", "--session", &other], "is not a saved session");
    }
    // The file is complete though nobody reads the text, and text comes before what may go wrong
    // with the file.
    let unread = directory.path("unread");
    let mut child = bitnet(&[
        "run",
        TALES,
        "Once",
        "--cpu",
        "--greedy",
        "--max-tokens",
        "60",
        "--session",
        &unread,
    ])
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert!(
        run("Once", &["--session", &unread]).as_array().unwrap().len() == 20
            && fs::metadata(&unread).unwrap().len() > 1000
    );
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 2, "nothing else is left");
    // Without tokens to generate, the prompt is in it.
    let empty = directory.path("empty");
    let ids = json(&["run", TALES, "Once upon", "--cpu", "--max-tokens", "0", "--session", &empty])
        ["token_ids"]
        .clone();
    assert!(ids == Value::Array(vec![]) && fs::metadata(&empty).unwrap().len() > 1000);
}

#[test]
fn the_authors_recommendations_are_followed() {
    let directory = Directory::new("authors");
    let with = |generation: &str| {
        let model = directory.model("", <[u8]>::to_vec);
        fs::write(directory.path("generation_config.json"), generation).unwrap();
        model
    };
    let ids = |model: &str, more: &[&str]| {
        json(&[&["run", model, "Once upon a time", "--cpu"], more].concat())["token_ids"].clone()
    };
    let greedy = ids(TALES, &["--greedy", "--max-tokens", "12"]);
    let sampled = ids(TALES, &["--temperature", "0.7", "--top-k", "40", "--max-tokens", "12"]);
    assert_ne!(greedy, sampled);
    let twelve = ["--max-tokens", "12"];
    assert_eq!(ids(&with(r#"{"do_sample": false}"#), &twelve), greedy);
    assert_eq!(ids(&with(r#"{"do_sample": true, "top_k": 1}"#), &twelve), greedy);
    assert_eq!(ids(&with("{}"), &twelve), sampled);
    assert_eq!(
        ids(&with(r#"{"do_sample": true, "temperature": 0.7, "top_k": 40}"#), &twelve),
        sampled
    );
    // Lengths: what is asked for counts.
    assert_eq!(
        ids(&with(r#"{"do_sample": false, "max_length": 9}"#), &[]).as_array().unwrap().len(),
        3
    );
    assert_eq!(ids(&with(r#"{"do_sample": false, "max_length": 9}"#), &twelve), greedy);
    // What the vocabulary has not cannot be forbidden.
    assert_eq!(
        ids(
            &with(
                r#"{"do_sample": false, "suppress_tokens": [5000], "bad_words_ids": [[7, 5000]]}"#
            ),
            &twelve
        ),
        greedy
    );
}

#[test]
fn prompts_may_begin_with_a_dash() {
    let run = |prompt: &[&str]| {
        json(&[&["run", TALES, "--cpu", "--max-tokens", "2"], prompt].concat())["prompt_token_ids"]
            .clone()
    };
    let options = ["run", TALES, "--cpu", "--max-tokens", "2", "--json", "-"];
    let piped: Value = serde_json::from_str(&answers(&options, "- a list\n")).unwrap();
    assert_eq!(run(&["- a list"]), piped["prompt_token_ids"]);
    assert_eq!(run(&["- a list", "--greedy"]), piped["prompt_token_ids"]);
    let literal = succeeds(&["run", TALES, "--cpu", "--max-tokens", "1", "--", "--greddy"]);
    assert!(literal.starts_with("--greddy"), "{literal}");
    fails(&["run", TALES, "--greddy"], "`-- --greddy` is accepted");
    fails(&["run", TALES, "a", "--greddy"], "--greddy");
}

#[test]
fn json_has_prompt_and_seed() {
    let run = |more: &[&str]| {
        let arguments = ["run", TALES, "--token-ids", "2046,7", "--cpu", "--max-tokens", "1"];
        json(&[&arguments[..], more].concat())
    };
    let one = run(&["--seed", "5"]);
    assert_eq!((&one["prompt_token_ids"], &one["seed"]), (&vec![2046, 7].into(), &5.into()));
    // No rate follows from a single token.
    assert!(one["decode_tokens_per_second"].is_null(), "{one}");
    let seeds = [run(&["--seed", "-1"]), run(&["--seed", "-1"])].map(|run| run["seed"].clone());
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn no_rate_is_shown_for_one_token() {
    let output = bitnet(&["run", TALES, "Once", "--cpu", "--max-tokens", "1"]).output().unwrap();
    assert!(errors(&output).contains("generated: 1 token; stopped"), "{}", errors(&output));
}

#[test]
fn texts_have_the_form() {
    let directory = Directory::new("grammar");
    let schema = r#"{"enum": ["yes", "no"]}"#;
    fs::write(directory.path("schema.json"), schema).unwrap();
    fs::write(directory.path("list.lark"), "start: item (\", \" item){2}\nitem: /[ab]/").unwrap();
    let run = |more: &[&str]| {
        let run = json(&[&["run", TALES, "Once", "--cpu", "--greedy"], more].concat());
        assert_eq!(run["stop_reason"], "end_of_text", "{run}");
        run["text"].as_str().unwrap().to_owned()
    };
    let choices = ["\"yes\"", "\"no\""];
    assert!(choices.contains(&&*run(&["--json-schema", schema])));
    assert!(choices.contains(&&*run(&["--json-schema", &directory.path("schema.json")])));
    let date = run(&["--regex", "[0-9]{4}-[0-9]{2}"]);
    assert!(date.len() == 7 && date.as_bytes()[4] == b'-', "{date}");
    assert_eq!(run(&["--grammar", &directory.path("list.lark")]).split(", ").count(), 3);
    fs::write(directory.path("list.gbnf"), "root ::= item (\", \" item){2}\nitem ::= [ab]")
        .unwrap();
    assert_eq!(run(&["--grammar", &directory.path("list.gbnf")]).split(", ").count(), 3);
    fs::write(directory.path("wrong.gbnf"), "root ::= item").unwrap();
    for (options, wanted) in [
        (&["--json-schema", r#"{"enum": []}"#][..], "--json-schema"),
        (&["--json-schema", "no such file"], "no such file"),
        (&["--regex", "("], "--regex"),
        (&["--grammar", &directory.path("schema.json")], "--grammar"),
        (
            &["--grammar", &directory.path("wrong.gbnf")],
            "line 1, column 10: there is no rule `item`",
        ),
        (&["--json-object", "--regex", "a"], "cannot be used with"),
    ] {
        fails(&[&["run", TALES, "Once", "--cpu"], options].concat(), wanted);
    }
}
