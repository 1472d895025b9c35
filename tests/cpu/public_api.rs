//! tests/public-api.txt lists every public item; its history shows what changed for users.
//! `UPDATE=1` writes it: `UPDATE=1 cargo test --test cpu -- public_api --ignored`. It needs the
//! Rust release whose rustdoc `public-api` can read.

use std::{
    collections::{BTreeSet, HashSet},
    fs,
    process::Command,
};
use support::{repository, sources_below};

#[test]
#[ignore = "needs unstable rustdoc, of one Rust release; CI runs it"]
fn the_list_of_public_items_is_current() {
    let target = repository("target/public-api");
    let status = Command::new(env!("CARGO"))
        .args(["rustdoc", "--quiet", "--locked", "-p", "bitnet-wgpu", "--lib"])
        .args(["--features", "auto,grammar,linalg,reference,train", "--target-dir"])
        .arg(&target)
        // Without `internals`, as on docs.rs: links to what is private are found here.
        .args(["--", "-Zunstable-options", "--output-format", "json", "-D", "rustdoc::all"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("RUSTDOCFLAGS")
        .current_dir(repository(""))
        .status();
    assert!(status.unwrap().success(), "rustdoc failed");
    let api = public_api::Builder::from_rustdoc_json(target.join("doc/bitnet_wgpu.json"))
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .expect("public-api reads what this Rust release writes");
    let listing = api.items().map(|item| format!("{item}\n")).collect::<String>();
    let path = repository("tests/public-api.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, listing).unwrap();
    } else {
        let known = fs::read_to_string(path).unwrap();
        let of = |text: &str, other: &str| {
            text.lines()
                .filter(|line| !other.lines().any(|l| l == *line))
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert!(
            known == listing,
            "tests/public-api.txt is out of date. New:\n{}\nGone:\n{}",
            of(&listing, &known),
            of(&known, &listing)
        );
    }
}

/// A kernel without a case fails the test binary `gpu`; an op that is made of others' kernels fails
/// here, as far as its name is in no case for another reason.
#[test]
fn every_public_op_is_called_by_a_case() {
    let listing = fs::read_to_string(repository("tests/public-api.txt")).unwrap();
    let cases = sources_below(&repository("tests/support/cases"));
    let code = cases.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words: HashSet<&str> =
        code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')).collect();
    let ops: BTreeSet<&str> = listing.lines().filter_map(op).collect();
    assert!(ops.len() > 90, "the listing has {} ops", ops.len());
    let left: Vec<_> = ops.into_iter().filter(|op| !words.contains(op)).collect();
    assert!(left.is_empty(), "no case calls {left:?}");
}

/// The name of an op, where a line of the listing is its function or the constructor of its type.
fn op(line: &str) -> Option<&str> {
    const FAMILIES: [&str; 5] = ["bitnet", "linalg", "optimizer", "tensor", "transformer"];
    let path = line.strip_prefix("pub fn bitnet_wgpu::")?.split('(').next()?;
    let (family, rest) = path.split_once("::")?;
    let name = rest.split(['<', ':']).next()?;
    let records = line.contains("&mut bitnet_wgpu::Encoder") || line.contains("<'");
    let function = records && name.starts_with(|first: char| first.is_lowercase());
    (FAMILIES.contains(&family) && (function || rest.ends_with("::new"))).then_some(name)
}
