//! The scripts that run on Macs, with stand-ins for the programs that only a Mac has.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command};

/// Names of the stand-ins and their shell scripts. `$FAULT` names what goes wrong; none prints more
/// than the scripts under test look at.
const STANDINS: [(&str, &str); 7] = [
    ("sw_vers", "echo 'ProductVersion: 15.0'"),
    (
        "system_profiler",
        "printf '  Chip: Apple M9\\n  Memory: 8 GB\\n  Serial Number (system): SECRET\\n  Chipset Model: Apple M9\\n'",
    ),
    ("xcodebuild", "[ \"${FAULT:-}\" != xcode ] && echo 'Xcode 16.0'"),
    // A compiler that does not know Metal 4.0 and refuses sources with the word `refuse`.
    (
        "xcrun",
        r#"[ "${FAULT:-}" != xcode ] || { echo 'xcrun: error: unable to find utility "metal"' >&2; exit 72; }
        for last; do :; done
        case "$*" in
        *--version) echo 'Apple metal version 32000' ;;
        *-std=metal4.0*) echo "error: invalid value 'metal4.0'" >&2; exit 1 ;;
        *" -c -o /dev/null "*) ! grep refuse "$last" ;;
        *) exit 1 ;;
        esac"#,
    ),
    ("rustc", "echo rustc 1.99.0"),
    ("git", "echo 0123abcd"),
    (
        "cargo",
        r#"for last; do :; done
        case "$*" in
        *"--release -p bitnet-wgpu-cli -- doctor") echo "every kernel compiles"; [ "${FAULT:-}" != doctor ] ;;
        *adapters) echo 'shader languages WGSL, MSL, MSL by default' ;;
        *dump_shaders*) mkdir -p "$last"; echo fine >"$last/a.metal"; echo "${FAULT:-fine}" >"$last/b.metal"; echo refuse >"$last/c.wgsl" ;;
        *--example\ generate) echo 'Once upon a time' ;;
        *"-- --ignored") echo 'test a ... ok'; [ "${FAULT:-}" != ignored ] || { echo 'test early ... FAILED'; i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo "test t$i ... ok"; done; exit 1; } ;;
        *--example\ bitlinear) sums=equal; [ "${FAULT:-}" != DIFFER ] || sums=DIFFER
            echo 'layer Wgsl  equal 1'; echo 'layer  Msl  equal 1'; echo "layer  Msl $sums 2" ;;
        *"-- export assets/tales-22m $WORK/tales.mlpackage"*) echo '29 MB' ;;
        *"--example coreml_run -- assets/tales-22m $WORK/tales.mlpackage"*) echo 'CPU: decode'; [ "${FAULT:-}" = coreml ] || echo 'all: loaded; decode 9 tok/s' ;;
        *--example\ quickstart) [ "${MTL_CAPTURE_ENABLED:-}" != 1 ] || [ "${FAULT:-}" = capture ] || mkdir "$BITNET_WGPU_CAPTURE_FILE" ;;
        *--lib*) echo tested; [ "${FAULT:-}" != watchdog ] || echo kIOGPUCommandBufferCallbackErrorImpactingInteractivity
            [ "${MTL_DEBUG_LAYER:-}" = 1 ] && [ "${FAULT:-}" != tests ] && [ "${FAULT:-}" != watchdog ] ;;
        *--test\ gpu*) [ "${MTL_SHADER_VALIDATION:-}${FAULT:-}" != 1beyond ] || echo 'Invalid device load executing kernel' ;;
        # The report has what came before, should the machine stop.
        *bench*) grep -q '^| both languages compared | PASS' "$REPORT" ;;
        *) exit 1 ;;
        esac"#,
    ),
];

const STEPS: [&str; 13] = [
    "doctor",
    "machine",
    "a Metal device",
    "Apple's compiler",
    "tests",
    "shaders validated",
    "tests as in release",
    "tests that need a GPU",
    "a story",
    "both languages compared",
    "Core ML",
    "a capture",
    "benchmarks",
];

/// A folder with the stand-ins, and a script that finds them before other programs.
fn standins(name: &str, script: &str, fault: &str) -> (PathBuf, Command) {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mac-verify-{name}"));
    fs::create_dir_all(&directory).unwrap();
    for (program, text) in STANDINS {
        let path = directory.join(program);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(support::repository(script));
    command.env("PATH", path).env("FAULT", fault);
    (directory, command)
}

/// Runs mac-verify and returns whether it succeeded, and its report.
fn verify(name: &str, fault: &str, arguments: &[&str]) -> (bool, String) {
    let (directory, mut command) = standins(name, "scripts/mac-verify", fault);
    let report = directory.join("report.md");
    let _ = fs::remove_file(&report);
    let output = command.args(arguments).arg(&report).env("REPORT", &report).output().unwrap();
    let report = fs::read_to_string(report).unwrap();
    assert!(report.len() < 65_536 && !report.contains("SECRET"), "{report}");
    (output.status.success(), report)
}

/// Names of the steps with this outcome.
fn steps<'a>(report: &'a str, outcome: &str) -> Vec<&'a str> {
    let rows = report.lines().filter(|line| line.contains(&format!("| {outcome} |")));
    rows.map(|line| line.split('|').nth(1).unwrap().trim()).collect()
}

#[test]
fn every_step_passes_doctor_first() {
    let (succeeded, report) = verify("pass", "", &[]);
    assert!(succeeded && steps(&report, "PASS") == STEPS, "{report}");
    for shown in [
        "every kernel compiles",
        "Apple M9",
        "Xcode 16.0",
        "macos-metal2.3, macOS 11.0: all 2 sources compile",
        "tested",
    ] {
        assert!(report.contains(shown), "{shown}: {report}");
    }
    assert!(!report.contains("AGX_RELAX"), "{report}");
}

#[test]
fn a_failed_step_fails_alone() {
    for (fault, failed) in [
        ("doctor", "doctor"),
        ("refuse", "Apple's compiler"),
        ("tests", "tests"),
        ("watchdog", "tests"),
        ("beyond", "shaders validated"),
        ("DIFFER", "both languages compared"),
        ("ignored", "tests that need a GPU"),
        ("coreml", "Core ML"),
        ("capture", "a capture"),
    ] {
        // The stand-in for benchmarks asks for an earlier step that passed.
        let also = (fault == "DIFFER").then_some("benchmarks");
        let (succeeded, report) = verify(&format!("fail-{fault}"), fault, &[]);
        assert!(
            !succeeded && steps(&report, "FAIL").into_iter().eq([failed].into_iter().chain(also)),
            "{fault}: {report}"
        );
        assert_eq!(
            steps(&report, "PASS").len(),
            STEPS.len() - 1 - usize::from(also.is_some()),
            "{fault}: {report}"
        );
        // It is far from the end of the output.
        assert_eq!(report.contains("test early ... FAILED"), fault == "ignored", "{report}");
        assert_eq!(
            report.contains("AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1"),
            fault == "watchdog",
            "{report}"
        );
    }
}

#[test]
fn without_xcode_a_step_is_skipped() {
    let (succeeded, report) = verify("xcode", "xcode", &[]);
    assert!(succeeded && steps(&report, "SKIPPED") == ["Apple's compiler"], "{report}");
    assert_eq!(steps(&report, "PASS").len(), STEPS.len() - 1, "{report}");
    assert!(
        report.contains("no Xcode")
            && report.contains("xcodebuild -downloadComponent MetalToolchain"),
        "{report}"
    );
}

#[test]
fn a_dry_run_runs_nothing() {
    let (succeeded, report) = verify("dry", "refuse", &["--dry-run"]);
    assert!(succeeded && steps(&report, "not run") == STEPS, "{report}");
    assert!(report.contains("scripts/apple-compile") && !report.contains("Apple M9"), "{report}");
}

#[test]
fn every_known_language_version_is_compiled() {
    let compile = |fault| {
        let (_, mut command) =
            standins(&format!("compile-{fault}"), "scripts/apple-compile", fault);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let of = |version: &str, end: &str| format!("{version}: {end}\n");
    let versions = [
        "macos-metal2.3, macOS 11.0",
        "metal3.0, macOS 13.0",
        "metal3.1, macOS 14.0",
        "metal3.2, macOS 15.0",
    ];
    let all = |end: &str| versions.map(|version| of(version, end)).concat();
    let unknown =
        of("metal4.0, macOS 26.0", "not known to this compiler: error: invalid value 'metal4.0'");
    let (status, output) = compile("none");
    assert_eq!(
        (status, output),
        (Some(0), format!("Apple metal version 32000\n{}{unknown}", all("all 2 sources compile")))
    );
    let (status, output) = compile("refuse");
    assert!(
        status == Some(1)
            && versions.iter().all(|version| output.contains(&of(version, "REFUSED"))),
        "{output}"
    );
    assert_eq!(compile("xcode").0, Some(77));
}

/// macOS has bash 3.2 and BSD's tools.
#[test]
fn scripts_for_macs_avoid_newer_tools() {
    // Of bash 4 and later, then of GNU's tools or Linux.
    let newer = [
        [
            "mapfile",
            "readarray",
            "declare -A",
            "local -A",
            "local -n",
            "coproc",
            "wait -n",
            "&>>",
            "|&",
            ",,}",
            "^^}",
            "@Q}",
            "EPOCH",
        ],
        [
            "stat -c",
            "sed -i",
            "sed -r",
            "timeout ",
            "nproc",
            "readlink -f",
            "grep -P",
            "date -d",
            "sort -V",
            "xargs -r",
            "tac ",
            "setsid",
            "/proc/",
        ],
    ];
    for script in [
        "test",
        "mac-verify",
        "apple-compile",
        "apple-check",
        "package-check",
        "python-clients",
        "lm-eval",
    ] {
        let text = fs::read_to_string(support::repository("scripts").join(script)).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let found: Vec<_> =
            code.filter(|line| newer.iter().flatten().any(|newer| line.contains(newer))).collect();
        assert!(found.is_empty(), "scripts/{script}: {found:?}");
    }
}
