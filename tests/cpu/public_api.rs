//! tests/public-api.txt lists every public item; its history shows what changed for users.
//! `UPDATE=1` writes it: `UPDATE=1 cargo test --test cpu -- public_api --ignored`. It needs the
//! Rust release whose rustdoc `public-api` can read.

use std::{collections::HashSet, fs, process::Command};
use support::{repository, sources_below};

#[test]
#[ignore = "needs unstable rustdoc, of one Rust release; CI runs it"]
fn the_listing_of_public_items_is_up_to_date() {
    let target = repository("target/public-api");
    let status = Command::new(env!("CARGO"))
        .args(["rustdoc", "--quiet", "--locked", "-p", "bitnet-wgpu", "--lib"])
        .args(["--features", "auto,linalg", "--target-dir"])
        .arg(&target)
        .args(["--", "-Zunstable-options", "--output-format", "json", "--cap-lints", "allow"])
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

/// A kernel without a case fails `ops`; an op that is made of others' kernels fails here, as far as
/// its name is in no case for another reason.
#[test]
fn every_public_op_is_called_by_a_case() {
    let (listing, cases) = (
        fs::read_to_string(repository("tests/public-api.txt")).unwrap(),
        sources_below(&repository("tests/support/cases")),
    );
    let code = cases.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words: HashSet<&str> =
        code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')).collect();
    let of_encoder = listing.lines().filter(|line| line.contains("(&mut bitnet_wgpu::Encoder"));
    let ops: Vec<&str> = of_encoder
        .filter_map(|line| {
            line.strip_prefix("pub fn bitnet_wgpu::")?.split(['<', '(']).next()?.rsplit("::").next()
        })
        .collect();
    assert!(ops.len() > 300, "the listing has {} ops", ops.len());
    // Most cases call one of both forms, which record the same kernels.
    let called = |op: &str| {
        words.contains(op)
            || words.contains(format!("{op}_into").as_str())
            || op.strip_suffix("_into").is_some_and(|op| words.contains(op))
    };
    let left: Vec<_> = ops.into_iter().filter(|op| !called(op)).collect();
    assert!(left.is_empty(), "no case calls {left:?}");
}
