//! The strict check, for what C++ allows and Metal does not: clang reads the text as C++ for OpenCL, which has Metal's address spaces.

use crate::{
    Error, compiler,
    rewrite::{Argument, Unit, rewrite},
};
use std::{
    collections::{BTreeSet, HashSet},
    process::Command,
};

/// Faults for which clang only has warnings.
const WARNINGS: &[&str] = &[
    "constant-conversion",
    "float-conversion",
    "implicit-float-conversion",
    "implicit-int-conversion",
    "literal-conversion",
    "return-type",
    "shorten-64-to-32",
    "uninitialized",
];

/// Checks a hand-written Metal text with the clang that `MSL_CLANG` names (default `clang++-19`).
///
/// # Errors
/// [`Error::Text`] for a kernel's signature; [`Error::Compile`] with clang's errors, or with ours for pointers without an address space,
/// `goto`, and static variables.
pub fn check(text: &str) -> Result<(), Error> {
    let metal = compiler::cache_path("strict", &text, "metal");
    compiler::write(&metal, text)?;
    let unit = rewrite(&compiler::preprocess(&metal)?).map_err(Error::Text)?;
    signatures(&unit).map_err(Error::Text)?;
    let source = metal.with_extension("clcpp");
    compiler::write(&source, &format!("#include <metal.h>\n{}", unit.cpp))?;

    let mut clang = Command::new(std::env::var("MSL_CLANG").unwrap_or("clang++-19".to_owned()));
    clang.args([
        "-x",
        "clcpp",
        "-cl-std=clc++2021",
        "-cl-no-stdinc",
        "-target",
        "x86_64-linux-gnu",
        "-fsyntax-only",
        "-fno-color-diagnostics",
    ]);
    // Disables `double`.
    clang.args(["-Xclang", "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64", "-Wno-everything"]);
    clang.args(WARNINGS.iter().map(|warning| format!("-Werror={warning}")));
    clang.args(["-Xclang", "-ast-dump", "-isystem"]).arg(compiler::support("metal"));
    let tree = compiler::run(clang.arg(source.file_name().unwrap_or_default()))?;
    let file = metal.file_name().unwrap_or_default().to_string_lossy();
    let found: Vec<_> = lint(&tree, &file).into_iter().map(|(line, what)| format!("{file}:{line}: {what}")).collect();
    if found.is_empty() { Ok(()) } else { Err(Error::Compile { output: found.join("\n") }) }
}

fn signatures(unit: &Unit) -> Result<(), String> {
    for kernel in &unit.kernels {
        let name = &kernel.name;
        let Some(threads) = kernel.max_threads else { return Err(format!("`{name}` has no max_total_threads_per_threadgroup")) };
        if threads > 1024 {
            return Err(format!("`{name}`: {threads} threads are more than a threadgroup can have"));
        }
        let mut slots = HashSet::new();
        for parameter in &kernel.parameters {
            match parameter.source {
                Argument::Buffer(slot) if !slots.insert(slot) => return Err(format!("`{name}`: two parameters in [[buffer({slot})]]")),
                Argument::Threadgroup => return Err(format!("`{name}`: nothing allocates memory for `{}`", parameter.name)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Searches clang's dump of the syntax tree, one node per line. A node has its file and line only if they differ from the node before.
fn lint(tree: &str, file: &str) -> BTreeSet<(u32, String)> {
    let mut found = BTreeSet::new();
    let (mut ours, mut line) = (false, 0);
    // The depth of a compiler-generated function, whose nodes are skipped.
    let mut implicit = None;
    for node in tree.lines() {
        // `<start, end> place of the name`
        let Some((places, rest)) = node.split_once('<').and_then(|(_, rest)| rest.split_once('>')) else { continue };
        let name_at = rest.split_whitespace().next().unwrap_or_default();
        for place in places.split(", ").chain([name_at]) {
            let fields: Vec<_> = place.split(':').collect();
            match fields[..] {
                ["line", at, _] => line = at.parse().unwrap_or(line),
                [path, at, _] if at.parse::<u32>().is_ok() => {
                    ours = path.ends_with(file);
                    line = at.parse().unwrap_or(line);
                }
                _ => {}
            }
        }
        let depth = node.find(|c: char| c.is_ascii_alphabetic());
        if implicit.is_some_and(|made| depth <= made) {
            implicit = None;
        }
        if rest.contains(" implicit ") && implicit.is_none() {
            implicit = Some(depth);
        }
        if !ours || implicit.is_some() {
            continue;
        }
        let is = |kind: &str| node.trim_start_matches(['|', '`', '-', ' ']).starts_with(kind);
        let declares = ["ParmVarDecl", "VarDecl", "FieldDecl"].into_iter().any(is);
        if declares && rest.contains("__generic") {
            found.insert((line, "a pointer or reference without an address space".to_owned()));
        }
        if is("VarDecl") && rest.contains("' static") && !rest.contains("__constant") {
            found.insert((line, "a static variable".to_owned()));
        }
        if is("GotoStmt") {
            found.insert((line, "goto".to_owned()));
        }
    }
    found
}
