//! tests/mutants.toml lists faults that `scripts/mutants` plants.

use std::fs;
use support::repository;

/// Returns the value of a key: a literal string of one line or of several.
fn value<'a>(entry: &'a str, key: &str) -> &'a str {
    let quoted = entry.split(&format!("\n{key} = ")).nth(1).unwrap();
    let quote = if quoted.starts_with("'''") { "'''" } else { &quoted[..1] };
    let value = quoted.strip_prefix(quote).unwrap().split(quote).next().unwrap();
    value.strip_prefix('\n').unwrap_or(value)
}

/// A rename would otherwise be noticed only where all faults are planted, every night.
#[test]
fn planted_faults_are_in_the_code() {
    let list = fs::read_to_string(repository("tests/mutants.toml")).unwrap();
    let entries: Vec<_> = list.split("[[mutant]]").skip(1).collect();
    assert!(entries.len() > 100, "the list has {} faults", entries.len());
    for entry in entries {
        let (file, from) = (value(entry, "file"), value(entry, "from"));
        let code = fs::read_to_string(repository(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let found = code.matches(from).count();
        assert_eq!(found, 1, "{}: {file} has {from}", value(entry, "name"));
    }
}
