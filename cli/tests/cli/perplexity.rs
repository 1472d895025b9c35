//! `bitnet perplexity`

use crate::{HELDOUT, TALES, fails, json, succeeds};
use std::fs;

#[test]
fn perplexity_is_the_figure_of_the_readme() {
    let score = json(&["perplexity", TALES, HELDOUT, "--window", "255", "--cpu"]);
    let perplexity = score["perplexity"].as_f64().unwrap();
    assert_eq!(score["tokens"], 934);
    approx::assert_abs_diff_eq!(perplexity, 19.03, epsilon = 0.03);
    // Of the mean of 934 tokens, whose log-likelihoods differ by about 2.
    let error = score["standard_error"].as_f64().unwrap();
    assert!((0.3..3.0).contains(&error), "{score}");
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let words = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("19.03 on the CPU"), "the README claims another figure");
    fails(&["perplexity", TALES, HELDOUT, "--window", "512"], "--window 512");
    fails(&["perplexity", TALES, "no such text"], "no such text");
}

#[test]
fn perplexity_of_the_first_tokens() {
    let score = |more: &[&str]| {
        json(&[&["perplexity", TALES, HELDOUT, "--cpu", "--window", "20"], more].concat())
    };
    let (all, first) = (score(&["--max-tokens", "50"]), score(&["--max-tokens", "20"]));
    assert_eq!(
        (&all["tokens"], &all["text_tokens"], &all["complete"]),
        (&50.into(), &50.into(), &true.into())
    );
    assert!(first["tokens"] == 20 && first["nll"].as_f64() < all["nll"].as_f64(), "{first}");
    fails(&["perplexity", TALES, HELDOUT, "--cpu", "--max-tokens", "0"], "--max-tokens 0");
}

#[test]
fn perplexity_has_an_error() {
    let text =
        succeeds(&["perplexity", TALES, HELDOUT, "--cpu", "--window", "20", "--max-tokens", "40"]);
    assert!(text.contains(" ± ") && text.contains(" over 40 tokens"), "{text}");
}
