//! scripts/mac-verify with stand-ins for what only a Mac has: what it reports, and that a failure is one.
#![cfg(unix)]

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command};

/// Programs that say what real ones would, as far as the script looks at it.
const STANDINS: [(&str, &str); 7] = [
    ("sw_vers", "echo 'ProductVersion: 15.0'"),
    ("system_profiler", "printf '  Chip: Apple M9\\n  Memory: 8 GB\\n  Serial Number (system): SECRET\\n  Chipset Model: Apple M9\\n'"),
    ("xcodebuild", "echo 'Xcode 16.0'"),
    // Refuses texts that hold `refuse`, and writes what `-o` names.
    (
        "xcrun",
        "tool=$1 input= output=\nwhile [ $# -gt 0 ]; do\ncase $1 in -o) output=$2; shift ;; *.metal | *.air) input=$1 ;; esac\nshift\ndone\n\
         [ -z \"$input\" ] || [ -f \"$input\" ] || { echo \"no $input\"; exit 1; }\n\
         [ -z \"$input\" ] || ! grep refuse \"$input\" || exit 1\n[ -z \"$output\" ] || echo \"$tool\" >\"$output\"\n",
    ),
    ("rustc", "echo rustc 1.99.0"),
    ("git", "echo 0123abcd"),
    // `$FAULT` is one step's.
    (
        "cargo",
        "case \"$*\" in\n*adapters*) echo 'kernels in [Wgsl, Msl], Msl by choice' ;;\n\
         *dump_shaders*/metal-libraries) mkdir -p \"$7\"; [ \"${FAULT:-}\" = unkept ] || cp \"$6\"/*.metallib \"$7\" ;;\n\
         *run*--cache*) echo text; [ \"${FAULT:-}\" = untaken ] || echo 'a.metallib: taken for `a`' >&2\n\
         [ \"${FAULT:-}\" != warned ] || echo \"b.metallib: damaged: the kernel's text is compiled\" >&2 ;;\n\
         *run*Once*) echo text; [ \"${FAULT:-}\" != other ] || echo more ;;\n\
         *dump_shaders*) for last; do :; done; mkdir -p \"$last\"; echo fine >\"$last/a.metal\"; echo \"${FAULT:-fine}\" >\"$last/b.metal\" ;;\n\
         *bitlinear*--example*|*--example*bitlinear*) sums=equal; [ \"${FAULT:-}\" != DIFFER ] || sums=DIFFER\n\
         echo 'layer Wgsl  equal 1'; echo 'layer  Msl  equal 1'; echo \"layer  Msl $sums 2\" ;;\n\
         *--workspace*) echo tested; [ \"${MTL_DEBUG_LAYER:-}\" = 1 ] && [ \"${FAULT:-}\" != tests ] ;;\n\
         *--test\\ ops*) [ \"${MTL_SHADER_VALIDATION:-}${FAULT:-}\" != 1beyond ] || echo 'Invalid device load executing kernel' ;;\nesac\n",
    ),
];

/// Runs the script among the stand-ins; gives whether it was content, and its report.
fn verify(name: &str, fault: &str, arguments: &[&str]) -> (bool, String) {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mac-verify-{name}"));
    fs::create_dir_all(&directory).unwrap();
    for (program, text) in STANDINS {
        let path = directory.join(program);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let report = directory.join("report.md");
    let _ = fs::remove_file(&report);
    let script = support::repository("scripts/mac-verify");
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(script);
    let output = command.args(arguments).arg(&report).env("PATH", path).env("FAULT", fault).output().unwrap();
    let report = fs::read_to_string(report).unwrap();
    assert!(report.len() < 65_536 && !report.contains("SECRET"), "{report}");
    (output.status.success(), report)
}

/// The steps with this outcome.
fn steps<'a>(report: &'a str, outcome: &str) -> Vec<&'a str> {
    let rows = report.lines().filter(|line| line.contains(&format!("| {outcome} |")));
    rows.map(|line| line.split('|').nth(1).unwrap().trim()).collect()
}

#[test]
fn all_well() {
    let (content, report) = verify("pass", "", &[]);
    assert!(content && steps(&report, "FAIL").is_empty() && steps(&report, "PASS").len() == 12, "{report}");
    assert!(report.contains("Apple M9") && report.contains("Xcode 16.0") && report.contains("tested"), "{report}");
}

#[test]
fn failures_are_told_apart() {
    for (fault, failed) in [
        ("refuse", &["Apple's compiler", "Metal libraries"][..]),
        ("unkept", &["libraries in a folder"]),
        ("untaken", &["a text by libraries"]),
        ("warned", &["a text by libraries"]),
        ("other", &["a text by libraries"]),
        ("DIFFER", &["both languages compared"]),
        ("tests", &["tests"]),
        ("beyond", &["shaders validated"]),
    ] {
        let (content, report) = verify(&format!("fail-{fault}"), fault, &[]);
        assert!(!content && steps(&report, "FAIL") == failed && steps(&report, "PASS").len() == 12 - failed.len(), "{fault}: {report}");
    }
}

#[test]
fn a_dry_run_runs_nothing() {
    let (content, report) = verify("dry", "refuse", &["--dry-run"]);
    assert!(content && steps(&report, "not run").len() == 12, "{report}");
    assert!(report.contains("xcrun metal -std=metal3.1 -Wall -Werror") && !report.contains("Apple M9"), "{report}");
}
