//! docs/public-api.txt lists every public item; its history shows what changed for users. `UPDATE=1` writes it:
//! `UPDATE=1 cargo test -p bitnet-wgpu-tests --test public_api -- --ignored`. It needs the Rust release whose rustdoc `public-api` can read.

use std::{fs, process::Command};
use support::repository;

#[test]
#[ignore = "needs unstable rustdoc, of one Rust release; CI runs it"]
fn the_listing_of_public_items_is_up_to_date() {
    let target = repository("target/public-api");
    let status = Command::new(env!("CARGO"))
        .args(["rustdoc", "--quiet", "--locked", "-p", "bitnet-wgpu", "--lib", "--target-dir"])
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
    let path = repository("docs/public-api.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, listing).unwrap();
    } else {
        let known = fs::read_to_string(path).unwrap();
        let of = |text: &str, other: &str| text.lines().filter(|line| !other.lines().any(|l| l == *line)).collect::<Vec<_>>().join("\n");
        assert!(known == listing, "docs/public-api.txt is out of date. New:\n{}\nGone:\n{}", of(&listing, &known), of(&known, &listing));
    }
}
