//! Names of ours that are Metal's: macros and what is declared at file scope.

use super::{Fault, Placed};
use crate::{
    front::library::Library,
    text::{Kind, tokens},
};

/// Names beside those of the library that a file may not give to something of its own: Metal's
/// words, C++'s other ways to write operators, macros.
const RESERVED: &[&str] = &[
    "main",
    "assert",
    "metal",
    "simd",
    "constant",
    "device",
    "thread",
    "threadgroup",
    "threadgroup_imageblock",
    "ray_data",
    "object_data",
    "kernel",
    "vertex",
    "fragment",
    "half",
    "as_type",
    "restrict",
    "and",
    "and_eq",
    "bitand",
    "bitor",
    "compl",
    "not",
    "not_eq",
    "or",
    "or_eq",
    "xor",
    "xor_eq",
];

/// Checks includes and the names of macros.
pub fn directives(text: &str, library: &Library) -> Vec<Fault> {
    let (mut found, mut line, mut included) = (Vec::new(), 1, false);
    for token in tokens(text) {
        let words: Vec<_> = token.text.split(|c: char| c.is_whitespace() || c == '(').collect();
        let mut fault = |what: String| found.push(Fault { line, what });
        match (token.kind, &words[..]) {
            (Kind::Directive, ["#include", "<metal_stdlib>", ..]) => included = true,
            (Kind::Directive, ["#include", file, ..]) => {
                fault(format!("only <metal_stdlib> may be included, not {file}"))
            }
            (Kind::Directive, ["#define", name, ..]) => {
                if !included {
                    fault(format!(
                        "macro `{name}` before <metal_stdlib> is included, whose text it may change"
                    ));
                }
                if library.since.contains_key(*name) {
                    fault(format!("macro `{name}` is a name of Metal's library"));
                } else if let Some(why) = taken(name, library) {
                    fault(format!("macro `{name}` {why}"));
                }
            }
            _ => {}
        }
        line += token.text.matches('\n').count();
    }
    if !included {
        found.push(Fault { line: 1, what: "<metal_stdlib> is not included".to_owned() });
    }
    found
}

/// Checks the names of types and functions at file scope.
pub fn at_file_scope(all: &[Placed<'_>], library: &Library) -> Vec<Fault> {
    let (mut found, mut depth) = (Vec::new(), 0);
    for (at, token) in all.iter().enumerate() {
        match token.text {
            "(" | "{" | "[" => depth += 1,
            "[[" => depth += 2,
            ")" | "}" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0
            && token.kind == Kind::Word
            && declares(all, at)
            && let Some(why) = taken(token.text, library)
        {
            found.push(token.fault(format!("file-scope name `{}` {why}", token.text)));
        }
    }
    found
}

/// Returns whether the word at `at` names a type or a function that is declared here.
fn declares(all: &[Placed<'_>], at: usize) -> bool {
    let text = |at: Option<usize>| at.and_then(|at| all.get(at)).map_or("", |token| token.text);
    let (before, after) = (text(at.checked_sub(1)), text(Some(at + 1)));
    let is_type = matches!(before, "struct" | "class" | "union" | "enum")
        || (before == "using" && after == "=");
    let start =
        all[..at].iter().rposition(|token| matches!(token.text, ";" | "}")).map_or(0, |at| at + 1);
    let is_alias = after == ";" && text(Some(start)) == "typedef";
    let follows_type = all
        .get(at.wrapping_sub(1))
        .is_some_and(|token| token.kind == Kind::Word || matches!(token.text, "*" | "&" | ">"));
    let is_function = after == "(" && follows_type && before != "operator";
    is_type || is_alias || is_function
}

/// Returns why a name is not free at file scope. Clang finds the clashes with names that a text
/// imports from namespace `metal`.
fn taken(name: &str, library: &Library) -> Option<&'static str> {
    if library.global.contains(name) {
        Some("is a name of Metal's library")
    } else if RESERVED.contains(&name) {
        Some("is a word of Metal")
    } else if name.contains("__")
        || (name.starts_with('_') && name[1..].starts_with(|c: char| c.is_ascii_uppercase()))
    {
        Some("is reserved for compilers")
    } else {
        None
    }
}
