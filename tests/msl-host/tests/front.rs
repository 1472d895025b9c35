//! Faults that the front finds, and sound Metal that it takes; scripts/msl-check runs this.
#![cfg(target_os = "linux")]

mod common;
#[path = "front/faults.rs"]
mod faults;
#[path = "front/sound.rs"]
mod sound;

use common::spoiled;
use faults::FAULTS;
use msl_host::{Error, front};
use sound::SOUND;

const TEXT: &str = include_str!("kernels/sound.metal");

/// What is found in a text; nothing in a sound one.
fn found(text: &str, version: u32) -> String {
    match front::check(text, version) {
        Ok(()) => String::new(),
        Err(Error::Compile { output }) => output,
        Err(error) => panic!("{error}"),
    }
}

#[test]
#[ignore = "needs clang 19, which scripts/msl-check installs"]
fn planted_faults_are_found() {
    let missed: Vec<_> = FAULTS
        .iter()
        .filter_map(|&(name, piece, by, what)| {
            let found = found(&spoiled(TEXT, piece, by), 230);
            (!found.contains(what)).then(|| format!("{name}: not `{what}` but: {found}"))
        })
        .collect();
    assert!(
        missed.is_empty(),
        "{} of {} faults are missed:\n{}",
        missed.len(),
        FAULTS.len(),
        missed.join("\n")
    );
}

#[test]
#[ignore = "needs clang 19, which scripts/msl-check installs"]
fn sound_constructs_are_not_refused() {
    let mut refused = Vec::new();
    for version in front::VERSIONS {
        let found = found(TEXT, version);
        assert!(found.is_empty(), "{version}: {found}");
    }
    for &(name, piece, by) in SOUND {
        let found = found(&spoiled(TEXT, piece, by), 230);
        if !found.is_empty() {
            refused.push(format!("{name}: {found}"));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
#[ignore = "needs clang 19, which scripts/msl-check installs"]
fn names_need_their_language_version() {
    let cases = [
        ("y[0] = nextafter(sum, 1.0f);", 310, "needs Metal 3.1"),
        ("sum = simd_shuffle_and_fill_up(sum, 0.0f, ushort(1));", 240, "needs Metal 2.4"),
        ("atomic_float parts; (void)parts;", 300, "needs Metal 3.0"),
        (
            "auto twofold = [](float v) { return 2.0f * v; }; sum = twofold(sum);",
            320,
            "need Metal 3.2",
        ),
    ];
    for (line, first, what) in cases {
        let text = spoiled(TEXT, faults::KERNEL, line);
        for version in front::VERSIONS {
            let found = found(&text, version);
            assert_eq!(found.contains(what), version < first, "{line} in {version}: {found}");
            assert_eq!(found.is_empty(), version >= first, "{line} in {version}: {found}");
        }
    }
}

#[test]
#[ignore = "needs clang 19, which scripts/msl-check installs"]
fn errors_name_the_line() {
    let line = TEXT.lines().position(|line| line.contains(faults::KERNEL)).unwrap() + 1;
    let found = found(&spoiled(TEXT, faults::KERNEL, "goto end; end: sum = max(0, 1.0f);"), 230);
    assert_eq!(
        found.lines().filter(|found| found.starts_with(&format!("{line}: "))).count(),
        found.lines().count(),
        "{found}"
    );
    assert!(found.contains("goto") && found.contains("ambiguous"), "{found}");
}
