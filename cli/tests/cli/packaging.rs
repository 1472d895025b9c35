//! Files of packaging/, which name versions.

use std::{fs, path::Path};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

#[test]
fn the_formula_has_this_version() {
    let archive = format!("/archive/refs/tags/v{}.tar.gz\"", env!("CARGO_PKG_VERSION"));
    assert!(read("packaging/homebrew/bitnet.rb").contains(&archive), "{archive}");
}

#[test]
fn the_image_uses_the_rust_of_releases() {
    let release = read(".github/workflows/release.yml");
    let (_, rest) = release.split_once("rustup toolchain install ").unwrap();
    let version = rest.split_whitespace().next().unwrap();
    let image = format!("FROM rust:{version}-");
    assert!(read("packaging/Dockerfile").contains(&image), "{image}");
}
