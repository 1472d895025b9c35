//! Imports go one way: every file of src/ imports only from layers below its own, by the module
//! that defines a thing, and without cycles. Files of the other published crates import without
//! cycles too. ARCHITECTURE.md shows the layers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};
use syn::{
    UseTree,
    visit::{self, Visit},
};

/// Top-level modules, from the lowest layer up. A layer may import from those before it; the
/// modules of one layer may import from each other as long as there is no cycle.
const LAYERS: [&[&str]; 10] = [
    &[
        "shape",
        "element",
        "language",
        "error",
        "limits",
        "memory",
        "spans",
        "files",
        "tuning",
        "visibility",
    ],
    &["kernel"],
    &["gpu"],
    &["weights"],
    &["ops"],
    &["cpu"],
    &["auto"],
    &["formats"],
    &["model"],
    &["lib", "internals"],
];

/// Folders of a top-level module, from the lowest up. A file may import from its own folder and
/// from those before it.
const FOLDERS: [(&str, &[&str]); 2] = [
    (
        "gpu",
        &[
            "capabilities",
            "device",
            "memory",
            "compile",
            "execute",
            "trace",
            "context",
            "transfer",
            "tensor",
            "tensor_map",
            "out",
            "host_staging",
            "recording",
            "encoder",
            "observe",
            "setup",
        ],
    ),
    (
        "model",
        &[
            "tokenizer",
            "threads",
            "engine",
            "session",
            "generate",
            "grammar",
            "tool_calls",
            "load",
            "conversation",
            "batch",
            "evaluate",
        ],
    ),
];

/// The macros that are exported at the root, and where they are defined.
const MACROS: [(&str, &str); 4] = [
    ("params", "kernel::params"),
    ("wgsl", "kernel::source"),
    ("msl", "kernel::source"),
    ("part", "kernel::source"),
];

/// A file's place in the module tree: `["gpu", "context"]`. Files named `mod.rs` have the name of
/// their folder.
type Module = Vec<String>;

/// All files of the library, with their text.
fn files() -> BTreeMap<Module, String> {
    files_of("src")
}

/// All files of a package's folder of sources, but for unit tests in files of their own, with their
/// text.
fn files_of(folder: &str) -> BTreeMap<Module, String> {
    fn visit(folder: &Path, module: &Module, all: &mut BTreeMap<Module, String>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_stem().unwrap().to_str().unwrap().to_owned();
            let inner: Module = module.iter().cloned().chain([name.clone()]).collect();
            if entry.is_dir() {
                visit(&entry, &inner, all);
            } else if name == "mod" {
                all.insert(module.clone(), fs::read_to_string(entry).unwrap());
            } else if entry.extension() == Some("rs".as_ref()) && name != "lib" && name != "tests" {
                all.insert(inner, fs::read_to_string(entry).unwrap());
            }
        }
    }
    let (source, mut all) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder), BTreeMap::new());
    visit(&source, &Vec::new(), &mut all);
    all.insert(Vec::new(), fs::read_to_string(source.join("lib.rs")).unwrap());
    all
}

/// Every path that a file names, in `use` and elsewhere, but for tests and macro bodies.
#[derive(Default)]
struct Paths {
    uses: Vec<Vec<String>>,
    others: Vec<Vec<String>>,
}

impl<'a> Visit<'a> for Paths {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        fn leaves(tree: &UseTree, prefix: &[String], all: &mut Vec<Vec<String>>) {
            let with = |name: &syn::Ident| {
                prefix.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>()
            };
            match tree {
                UseTree::Path(path) => leaves(&path.tree, &with(&path.ident), all),
                UseTree::Name(name) => all.push(with(&name.ident)),
                UseTree::Rename(rename) => all.push(with(&rename.ident)),
                UseTree::Glob(_) => all.push(prefix.to_vec()),
                UseTree::Group(group) => {
                    group.items.iter().for_each(|tree| leaves(tree, prefix, all))
                }
            }
        }
        leaves(&item.tree, &[], &mut self.uses);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.others.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    // `pub(crate)` names no thing.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if item.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|cfg| cfg == "test")
        }) {
            return;
        }
        let mut inner = Self::default();
        visit::visit_item_mod(&mut inner, item);
        // What a module inside a file calls `super` is the file.
        let outside = |mut path: Vec<String>| {
            let own = path[0] == "super";
            if own {
                path.remove(0);
            }
            (!own || path.first().is_some_and(|first| first == "super")).then_some(path)
        };
        self.uses.extend(inner.uses.into_iter().filter_map(outside));
        self.others.extend(inner.others.into_iter().filter_map(outside));
    }
}

/// The file that a path leads to, and whether more of the path follows; `None` for other crates and
/// for names of the file itself.
fn target(from: &Module, path: &[String], files: &BTreeMap<Module, String>) -> Option<Module> {
    let mut parts = path.iter();
    let mut at: Module = match path.first()?.as_str() {
        "crate" => {
            parts.next();
            Vec::new()
        }
        "self" => {
            parts.next();
            from.clone()
        }
        "super" => {
            let mut at = from.clone();
            while parts.clone().next().is_some_and(|part| part == "super") {
                parts.next();
                at.pop();
            }
            at
        }
        first => {
            let child: Module = from.iter().cloned().chain([first.to_owned()]).collect();
            if !files.contains_key(&child) {
                return None;
            }
            from.clone()
        }
    };
    for part in parts {
        let next: Module = at.iter().cloned().chain([part.clone()]).collect();
        if !files.contains_key(&next) {
            if let (true, Some((_, place))) =
                (at.is_empty(), MACROS.iter().find(|(name, _)| name == part))
            {
                return Some(place.split("::").map(str::to_owned).collect());
            }
            break;
        }
        at = next;
    }
    Some(at)
}

fn name(module: &Module) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("::") }
}

fn layer(module: &Module) -> usize {
    let top = module.first().map_or("lib", String::as_str);
    LAYERS
        .iter()
        .position(|layer| layer.contains(&top))
        .unwrap_or_else(|| panic!("`{top}` is in no layer; add it to LAYERS"))
}

/// What each file imports from.
fn edges(files: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let edges = |(module, text): (&Module, &String)| {
        let mut paths = Paths::default();
        paths
            .visit_file(&syn::parse_file(text).unwrap_or_else(|e| panic!("{}: {e}", name(module))));
        let others =
            paths.others.into_iter().filter(|path| matches!(path[0].as_str(), "crate" | "super"));
        let targets =
            paths.uses.into_iter().chain(others).filter_map(|path| target(module, &path, files));
        (module.clone(), targets.filter(|to| to != module).collect())
    };
    files.iter().map(edges).collect()
}

#[test]
fn no_import_climbs() {
    let files = files();
    let mut wrong = Vec::new();
    for (from, to) in
        edges(&files).iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)))
    {
        if layer(to) > layer(from) {
            wrong.push(format!("{} imports from {}, which is above it", name(from), name(to)));
        }
        if from.starts_with(to) {
            wrong.push(format!(
                "{} imports from {}, which contains it: import from the module that defines the thing",
                name(from),
                name(to)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Imports of a folder of `top` from one that is later in `order`, or from a folder that is not in
/// it, as messages.
fn folders_that_climb(
    edges: &BTreeMap<Module, BTreeSet<Module>>,
    top: &str,
    order: &[&str],
) -> Vec<String> {
    let folder =
        |module: &Module| (module.len() > 1 && module[0] == top).then(|| module[1].clone());
    let place = |folder: &str| order.iter().position(|name| *name == folder);
    let mut wrong = Vec::new();
    for (from, all) in edges {
        let Some(own) = folder(from) else { continue };
        let Some(at) = place(&own) else {
            wrong.push(format!("{top}::{own} is not in FOLDERS"));
            continue;
        };
        let above = all
            .iter()
            .filter(|to| folder(to).is_some_and(|to| place(&to).is_none_or(|place| place > at)));
        wrong.extend(above.map(|to| format!("{} imports from {}", name(from), name(to))));
    }
    wrong
}

#[test]
fn folders_import_from_lower_folders() {
    let edges = edges(&files());
    let wrong: Vec<_> =
        FOLDERS.iter().flat_map(|(top, order)| folders_that_climb(&edges, top, order)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is left of the imports when all that are in no cycle are taken away.
fn cycles(mut edges: BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    // Whoever imports nothing that is left cannot be in a cycle.
    while let Some(free) = edges.iter().find(|(_, to)| to.is_empty()).map(|(from, _)| from.clone())
    {
        edges.remove(&free);
        edges.values_mut().for_each(|to| {
            to.remove(&free);
        });
    }
    edges
}

#[test]
fn no_import_closes_a_cycle() {
    for folder in ["src", "chat-template/src", "cli/src", "coreml/src", "serve/src", "train/src"] {
        let list = |to: &BTreeSet<Module>| to.iter().map(name).collect::<Vec<_>>().join(", ");
        let cycle: Vec<_> = cycles(edges(&files_of(folder)))
            .iter()
            .map(|(from, to)| format!("{} -> {}", name(from), list(to)))
            .collect();
        assert!(
            cycle.is_empty(),
            "{folder}: these files are in cycles, or above them:\n{}",
            cycle.join("\n")
        );
    }
}

#[test]
fn ops_name_no_wgpu_type() {
    for (module, text) in
        files().iter().filter(|(module, _)| module.first().is_some_and(|top| top == "ops"))
    {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let named: Vec<_> =
            code.filter(|line| line.replace("bitnet_wgpu", "").contains("wgpu")).collect();
        assert!(named.is_empty(), "{}: {named:?}", name(module));
    }
}

#[test]
fn planted_edges_are_found() {
    let files: BTreeMap<Module, String> = [
        ("kernel", "pub mod a;"),
        ("kernel::a", "use crate::gpu::b::B; use super::Thing; fn f() { crate::gpu::b::g(); }"),
        ("gpu", "pub mod b; pub use b::B;"),
        ("gpu::b", "use crate::{kernel::a::{self, A}, params}; use std::fmt; #[cfg(test)] mod tests { use crate::model::M; }"),
        ("model", ""),
        ("model::batch", "use crate::model::load::files::F;"),
        ("model::load", ""),
        ("model::load::files", "use crate::model::batch::B; pub struct F;"),
        ("model::new", ""),
        ("kernel::params", ""),
    ]
    .map(|(module, text)| (module.split("::").map(str::to_owned).collect(), text.to_owned()))
    .into();
    let edges = edges(&files);
    let of = |module: &str| {
        edges[&module.split("::").map(str::to_owned).collect::<Module>()]
            .iter()
            .map(name)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("kernel::a"), ["gpu::b", "kernel"]);
    assert_eq!(of("gpu::b"), ["kernel::a", "kernel::params"]);
    assert_eq!(of("gpu"), ["gpu::b"]);

    let climbs = folders_that_climb(&edges, "model", &["load", "batch"]);
    assert_eq!(
        climbs,
        ["model::load::files imports from model::batch", "model::new is not in FOLDERS"]
    );
}
