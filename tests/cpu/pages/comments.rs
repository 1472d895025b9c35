//! How comments read: doc comments say what an item is or does, and the spelling is American.

use super::prose::BRITISH;
use support::{repository, sources_below};

/// The packages that are published; then the others.
const PUBLISHED: [&str; 6] =
    ["src", "cli/src", "coreml", "serve/src", "chat-template/src", "train"];
const OTHERS: [&str; 4] = ["benches", "cli/tests", "examples", "tests"];

/// Folders in which the words of comments are held to [`TERMS`].
const OURS: [&str; 6] = ["benches", "coreml", "examples", "src", "tests", "train"];
/// Phrases for which the field has a term, with that term.
const TERMS: [(&str, &str); 10] = [
    ("in any company", "batch-invariant"),
    ("the same bits", "bit-identical"),
    ("to the bit", "bit-identical"),
    ("in halves", "in f16"),
    ("matrix unit", "tensor cores; simdgroup matrices on Metal"),
    ("the roof ", "roofline, peak bandwidth, peak compute"),
    ("by groups", "per group"),
    ("the twin", "the CPU reference"),
    ("float masters", "float weights"),
    ("guessed", "drafted, inferred"),
];

/// Returns the comments of a folder's sources: a line each, without what is in backticks.
fn comments(folder: &str) -> Vec<String> {
    let text = sources_below(&repository(folder));
    let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with("//"));
    let prose = |line: &str| line.split('`').step_by(2).collect::<Vec<_>>().join("code");
    lines.map(prose).collect()
}

/// Returns the doc comments of a folder's sources, without the programs in them.
fn doc_comments(folder: &str) -> Vec<String> {
    let text = sources_below(&repository(folder));
    let (mut all, mut block, mut fenced) = (Vec::new(), String::new(), false);
    for line in text.lines().map(str::trim_start).chain([""]) {
        let Some(doc) = line.strip_prefix("///").or(line.strip_prefix("//!")) else {
            all.extend((!block.is_empty()).then(|| std::mem::take(&mut block)));
            fenced = false;
            continue;
        };
        fenced ^= doc.trim_start().starts_with("```");
        if !fenced {
            block = block + doc.trim() + " ";
        }
    }
    all
}

#[test]
fn doc_comments_are_statements() {
    let mut faults = Vec::new();
    for comment in PUBLISHED.into_iter().chain(OTHERS).flat_map(doc_comments) {
        let prose: String = comment.split('`').step_by(2).collect::<Vec<_>>().join("code");
        if comment.starts_with("The same") || prose.contains("? ") {
            faults.push(comment);
        }
    }
    assert!(
        faults.is_empty(),
        "{} begin with \"The same\" or ask:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// Returns a line without what is in double quotes, which may be the heading of a dated note.
fn unquoted(line: &str) -> String {
    line.split('"').step_by(2).collect::<Vec<_>>().join("").to_lowercase()
}

#[test]
fn comments_have_the_terms_of_the_field() {
    let lines: Vec<_> = OURS.into_iter().flat_map(comments).collect();
    let mut faults = Vec::new();
    for (phrase, term) in TERMS {
        let lines = lines.iter().filter(|line| unquoted(line).contains(phrase));
        faults.extend(lines.map(|line| format!("`{phrase}`: write {term}: {line}")));
    }
    assert!(faults.is_empty(), "{} comments:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn comments_are_in_american_spelling() {
    let lines = PUBLISHED.into_iter().chain(OTHERS).flat_map(comments);
    let faults: Vec<_> = lines
        .filter(|line| BRITISH.iter().any(|word| line.to_lowercase().contains(word)))
        .collect();
    assert!(faults.is_empty(), "{} comments:\n{}", faults.len(), faults.join("\n"));
}
