//! What `BITNET_WGPU_CAPTURE` has a graphics debugger capture. The variable is a process's, so each
//! test starts this program again; the debugger is a stand-in for RenderDoc: a library that is
//! loaded before, with RenderDoc's function table, and says what it is told.

use bitnet_wgpu::{Context, tensor};
use std::process::Command;
use support::{App, block_on, files::Directory, own_process};

const VARIABLE: &str = "BITNET_WGPU_CAPTURE";
const FILE: &str = "BITNET_WGPU_CAPTURE_FILE";
/// Set where this program was started again: whose device it opens.
const WHOSE: &str = "BITNET_TEST_CAPTURE";

/// In RenderDoc's table, StartFrameCapture and EndFrameCapture are the functions 19 and 21.
const STAND_IN: &str = r#"
#include <cstdio>
#include <cstdint>
static void begin(void *, void *) { std::fputs("capture begins\n", stderr); }
static uint32_t end(void *, void *) { std::fputs("capture ends\n", stderr); return 1; }
extern "C" int RENDERDOC_GetAPI(int, void **table) {
    static void *functions[64];
    functions[19] = reinterpret_cast<void *>(begin);
    functions[21] = reinterpret_cast<void *>(end);
    *table = functions;
    return 1;
}
"#;

/// Whether this program, started again, succeeds with such a variable, and the lines that it and
/// the debugger write.
fn started(test: &str, whose: &str, value: &str, debugger: Option<&str>) -> (bool, Vec<String>) {
    let mut program = own_process("", module_path!(), test);
    program.env(WHOSE, whose).env(VARIABLE, value).env("RUST_BACKTRACE", "0");
    if let Some(library) = debugger {
        program.env("LD_PRELOAD", library);
    }
    let output = program.output().unwrap();
    let told = ["submission", "capture", "the error"];
    let errors = String::from_utf8(output.stderr).unwrap();
    let lines = errors
        .lines()
        .filter(|line| told.iter().any(|told| line.starts_with(told)))
        .map(str::to_owned);
    (output.status.success(), lines.collect())
}

/// Five submissions, the last of which reads what came of all.
fn work(context: &Context) {
    let (one, sum) =
        (context.upload(&[1f32, -2.0], [2]).unwrap(), context.upload(&[0f32; 2], [2]).unwrap());
    let mut encoder = context.encoder("count");
    tensor::add(&sum, &one).forward_into(&mut encoder, &sum).unwrap();
    let recording = encoder.finish();
    for number in 1..5 {
        eprintln!("submission {number}");
        recording.submit().unwrap().wait().unwrap();
    }
    eprintln!("submission 5");
    assert_eq!(block_on(recording.submit_read(&sum).unwrap()).unwrap(), [5.0, -10.0]);
}

#[test]
fn a_debugger_captures_the_requested_submissions() {
    const NAME: &str = "a_debugger_captures_the_requested_submissions";
    match std::env::var(WHOSE).as_deref() {
        Ok("the app's") => return work(&App::default().open(|_| ()).unwrap()),
        Ok(_) => return work(&block_on(Context::new()).unwrap()),
        Err(_) => {}
    }
    let directory = Directory::temporary();
    let (text, library) =
        (directory.write("debugger.cpp", STAND_IN), directory.0.join("librenderdoc.so"));
    let mut compiler = Command::new("c++");
    compiler
        .args(["-shared", "-fPIC", "-Wl,-soname,librenderdoc.so", "-o"])
        .args([&library, &text]);
    assert!(compiler.status().unwrap().success());
    let library = library.to_str().unwrap();
    // wgpu looks for RenderDoc where it has debug assertions itself, as it has in all builds but
    // those for release.
    let attached =
        started(NAME, "ours", "2", Some(library)).1.iter().any(|line| line == "capture begins");
    assert!(attached || !cfg!(debug_assertions));
    for (whose, value, captured) in [
        ("ours", "2", 2..3),
        ("ours", "1:3", 1..4),
        ("the app's", "4:9", 4..6),
        ("ours", "6", 6..6),
    ] {
        let lines = |number: u32| {
            let captured = if attached && captured.contains(&number) {
                &["capture begins", "capture ends"][..]
            } else {
                &[]
            };
            [format!("submission {number}")]
                .into_iter()
                .chain(captured.iter().map(|&line| line.to_owned()))
        };
        let expected: Vec<String> = (1..6).flat_map(lines).collect();
        assert_eq!(
            started(NAME, whose, value, Some(library)),
            (true, expected),
            "{value}, {whose}"
        );
    }
    // Without a debugger, the same results.
    assert!(started(NAME, "ours", "1:9", None).0);
}

#[test]
fn what_is_no_number_of_submissions_is_refused() {
    const NAME: &str = "what_is_no_number_of_submissions_is_refused";
    if std::env::var_os(WHOSE).is_some() {
        return match block_on(Context::new()) {
            Ok(_) => eprintln!("the error is none"),
            Err(error) => eprintln!("the error is {:?}, {error}", error.kind()),
        };
    }
    let (_, told) = started(NAME, "ours", "0:2", None);
    assert!(
        told.len() == 1
            && told[0].starts_with(
                "the error is Invalid, capture: BITNET_WGPU_CAPTURE is `0:2`; N or N:COUNT is needed"
            ),
        "{told:?}"
    );
    // Empty, it says nothing.
    assert_eq!(started(NAME, "ours", "", None).1, ["the error is none"]);
    // Only Metal writes a file, and one submission to it.
    for (value, expected) in [("", "needs BITNET_WGPU_CAPTURE"), ("1", "is for Metal")] {
        let mut program = own_process("", module_path!(), NAME);
        program.env(WHOSE, "ours").env(VARIABLE, value).env(FILE, "step.gputrace");
        let errors = String::from_utf8(program.output().unwrap().stderr).unwrap();
        let expected =
            if cfg!(target_vendor = "apple") && value == "1" { "none" } else { expected };
        assert!(errors.contains("the error is ") && errors.contains(expected), "{errors}");
    }
}
