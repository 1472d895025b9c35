//! Any arguments at all: a command succeeds, or says what is wrong with them. It neither panics nor
//! hangs.

use crate::TALES;
use proptest::prelude::*;
use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/odd");

/// An option with an odd value, or an odd word.
fn argument() -> impl Strategy<Value = Vec<String>> {
    const OPTIONS: [&str; 30] = [
        "--temperature",
        "--top-k",
        "--top-p",
        "--min-p",
        "--repetition-penalty",
        "--presence-penalty",
        "--frequency-penalty",
        "--logit-bias",
        "--seed",
        "--stop",
        "--system-prompt",
        "--token-ids",
        "--prompt",
        "--count",
        "--context-length",
        "--decode-tokens",
        "--context-lengths",
        "--prefill",
        "--window",
        "--shader-language",
        "--i2s-layout",
        "--activations",
        "--session",
        "--chat-template",
        "--config",
        "--shape",
        "--speculate",
        "--draft-tokens",
        "--threads",
        "--format",
    ];
    const VALUES: [&str; 18] = [
        "",
        "0",
        "1",
        "-1",
        "0.5",
        "2",
        "NaN",
        "inf",
        "-inf",
        "1e39",
        "18446744073709551615",
        "99999999999999999999",
        "1,2",
        "1,,2",
        "5=-1",
        "2048=inf",
        "a",
        "é\u{1b}[2J",
    ];
    const WORDS: [&str; 14] = [
        "--greedy",
        "--ignore-eos",
        "--chat",
        "--json",
        "--cpu",
        "--int8-head",
        "--quantize",
        "--ignore-unused",
        "--quick",
        "--nothing",
        "-h",
        "--",
        "-",
        "x",
    ];
    prop_oneof![
        (prop::sample::select(&OPTIONS[..]), prop::sample::select(&VALUES[..]))
            .prop_map(|(option, value)| vec![option.into(), value.into()]),
        prop::sample::select(&WORDS[..]).prop_map(|word| vec![word.into()]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(60), max_shrink_iters: 5, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_arguments_are_followed_or_refused(
        command in prop::sample::select(&["run", "run", "run", "perplexity", "info", "chat", "quantize", "bench", "nothing"][..]),
        most in prop::sample::select(&["0", "1", "2", "-1", "x"][..]),
        arguments in prop::collection::vec(argument(), 0..4),
    ) {
        // Rounds of a benchmark of the shipped model take seconds.
        let model = if command == "bench" { SMALL } else { TALES };
        let mut all = vec![command.to_owned(), model.to_owned()];
        match command {
            "run" => all.extend(["--cpu".into(), "--max-tokens".into(), most.into()]),
            "chat" => all.extend(["--cpu".into(), "--max-tokens".into(), most.into()]),
            // A place that cannot be written to; and none that takes its time.
            "quantize" => all.push("/nowhere/at/all".into()),
            "bench" => all.extend(["--cpu", "--prefill", "2", "--context-lengths", "0", "--decode-tokens", most].map(str::to_owned)),
            "perplexity" => all.extend(["--cpu".into(), "--nothing".into()]),
            _ => {}
        }
        all.extend(arguments.into_iter().flatten());
        let mut child = Command::new(env!("CARGO_BIN_EXE_bitnet"))
            .args(&all)
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if started.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                prop_assert!(false, "{all:?} has no end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        prop_assert!(matches!(output.status.code(), Some(0..=2)) && !said.contains("panicked"), "{all:?}: {:?} {said}", output.status);
        prop_assert!(output.status.success() || said.contains("error: "), "{all:?}: {said}");
        // What the person typed is repeated by the parser of arguments, as typed.
        prop_assert!(output.status.code() == Some(2) || !said.contains('\u{1b}'), "{all:?}: {said}");
    }
}

/// How many cases, unless `PROPTEST_CASES` says it.
fn cases(usually: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usually)
}
