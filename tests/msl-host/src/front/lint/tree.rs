//! Searches the syntax tree that clang dumps of C++ for OpenCL.

use crate::front::Fault;
use std::collections::BTreeSet;

/// Searches a dump, which has one node per line. A node has its file and line only if they differ
/// from the node before.
pub fn lint(dump: &str) -> BTreeSet<Fault> {
    let mut found = BTreeSet::new();
    let (mut ours, mut line) = (false, 0);
    // The depth of a compiler-generated function, whose nodes are skipped.
    let mut implicit = None;
    // The address of the function around a node.
    let mut function = String::new();
    for node in dump.replace("<stdin>", "stdin").lines() {
        // `<start, end> place of the name`
        let Some((places, rest)) = node.split_once('<').and_then(|(_, rest)| rest.split_once('>'))
        else {
            continue;
        };
        let name_at = rest.split_whitespace().next().unwrap_or_default();
        for place in places.split(", ").chain([name_at]) {
            let fields: Vec<_> = place.split(':').collect();
            match fields[..] {
                ["line", at, _] => line = at.parse().unwrap_or(line),
                [path, at, _] if at.parse::<usize>().is_ok() => {
                    ours = path == "stdin";
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
        let mut fault = |what: &str| found.insert(Fault { line, what: what.to_owned() });
        if ["ParmVarDecl", "VarDecl", "FieldDecl"].into_iter().any(is) && rest.contains("__generic")
        {
            fault("a pointer or reference without an address space");
        }
        if is("VarDecl") && rest.contains("' static") && !rest.contains("__constant") {
            fault("a static variable");
        }
        if ["FunctionDecl", "CXXMethodDecl"].into_iter().any(is) {
            function = node
                .split_whitespace()
                .find(|word| word.starts_with("0x"))
                .unwrap_or_default()
                .to_owned();
        }
        if is("DeclRefExpr") && !function.is_empty() && rest.contains(&function) {
            fault("recursion");
        }
    }
    found
}
