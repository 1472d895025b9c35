//! tests/mutants.toml lists faults that `scripts/mutants` plants.

use std::fs;
use support::{repository, sources_below};

/// Returns the files with their entries.
fn entries(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.split("\n[[\"").skip(1).map(|entry| entry.split_once("\"]]").unwrap())
}

/// Returns the value of a key: a literal string of one line or of several.
fn value<'a>(entry: &'a str, key: &str) -> &'a str {
    let quoted = entry.split(&format!("\n{key} = ")).nth(1).unwrap();
    let quote = if quoted.starts_with("'''") { "'''" } else { &quoted[..1] };
    let value = quoted.strip_prefix(quote).unwrap().split(quote).next().unwrap();
    value.strip_prefix('\n').unwrap_or(value)
}

/// A test that is renamed would leave its faults without one.
#[test]
fn tests_of_planted_faults_exist() {
    let list = fs::read_to_string(repository("tests/mutants.toml")).unwrap();
    let sources: String = ["src", "tests", "chat-template", "cli", "coreml", "serve", "train"]
        .map(|folder| sources_below(&repository(folder)))
        .concat();
    // The last part of an op's case is the name of an executor.
    let executors = ["our_metal", "wgsl"];
    for (_, entry) in entries(&list) {
        let filter = value(entry, "test").rsplit(' ').next().unwrap_or_default();
        let mut parts = filter.split("::").filter(|part| !executors.contains(part));
        let missing = parts.find(|part| !sources.contains(part));
        assert!(missing.is_none(), "{}: there is no test {filter}", value(entry, "name"));
    }
}

/// A rename would otherwise be noticed only where all faults are planted, every night.
#[test]
fn planted_faults_are_in_the_code() {
    let list = fs::read_to_string(repository("tests/mutants.toml")).unwrap();
    let (faults, lines) = (entries(&list).count(), list.lines().count());
    assert!(faults > 100 && lines <= 900, "{faults} faults in {lines} lines");
    for (file, entry) in entries(&list) {
        let from = value(entry, "from");
        let code = fs::read_to_string(repository(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let found = code.matches(from).count();
        assert_eq!(found, 1, "{}: {file} has {from}", value(entry, "name"));
    }
}
