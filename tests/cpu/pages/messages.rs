//! Messages to users have no debug output of types.

use std::{fs, path::Path};
use support::repository;

/// What debug output writes as users would: a part of the line, and why it is allowed.
const ALLOWED: [(&str, &str); 17] = [
    ("shape", "a list of sizes"),
    ("{sizes:?}", "a list of sizes"),
    ("{dims:?}", "a list of sizes"),
    ("{grid:?}", "a list of sizes"),
    ("{split:?}", "a list of sizes"),
    ("{widths:?}", "a list of sizes"),
    ("{axes:?}", "a list of axes"),
    ("self.dims()", "a list of sizes"),
    ("{known:?}", "a list of numbers"),
    ("end-of-sequence tokens {:?}", "a list of numbers"),
    ("\\\"workgroups\\\":{workgroups:?}", "a list of numbers"),
    ("limit of {limit:?}", "a duration, with its unit"),
    ("{why}: {:?} expected", "a duration, with its unit"),
    ("{other:?} on the {there}", "a duration, with its unit"),
    ("took {took:?}", "a duration, with its unit"),
    ("{name} {range:?} {families:?}", "hashed, not shown"),
    ("{backend:?}", "hashed, not shown"),
];
/// Files whose debug output is hashed.
const FILES: [&str; 1] = ["src/gpu/setup/tuning_file.rs"];

/// Returns the lines of code with debug output: not in comments, tests and `Debug` itself.
fn debug_output(source: &str) -> Vec<&str> {
    let code = source.split("#[cfg(test)]\n").next().unwrap_or_default();
    let (mut found, mut in_debug) = (Vec::new(), false);
    for line in code.lines() {
        in_debug =
            line.starts_with("impl") && line.contains("Debug for") || in_debug && line != "}";
        let comment = line.trim_start().starts_with("//");
        let debug = [":?}", ":#?}"].iter().any(|form| line.contains(form));
        found.extend((debug && !comment && !in_debug).then_some(line.trim()));
    }
    found
}

/// Adds the faults of a folder's sources.
fn check(folder: &Path, faults: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_other = FILES.iter().any(|file| path.ends_with(file)) || path.ends_with("tests.rs");
        if path.is_dir() {
            check(&path, faults);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_other {
            let source = fs::read_to_string(&path).unwrap();
            let lines = debug_output(&source).into_iter();
            let lines = lines.filter(|line| !ALLOWED.iter().any(|(part, _)| line.contains(part)));
            faults.extend(lines.map(|line| format!("{}: {line}", path.display())));
        }
    }
}

#[test]
fn messages_have_no_debug_output() {
    let sample =
        "let a = \"{x:?}\";\n/// {:?}\nimpl Debug for X {\n \"{:?}\"\n}\n#[cfg(test)]\nmod t {";
    assert_eq!(debug_output(sample), ["let a = \"{x:?}\";"]);
    let mut faults = Vec::new();
    for folder in ["src", "chat-template/src", "cli/src", "coreml/src", "serve/src", "train/src"] {
        check(&repository(folder), &mut faults);
    }
    assert!(faults.is_empty(), "debug output in messages:\n{}", faults.join("\n"));
}
