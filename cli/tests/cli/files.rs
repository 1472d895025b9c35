//! Files that commands read and write: names, kinds and lengths of them.

use crate::{
    Directory, HELDOUT, TALES, bitnet, errors, fails, json, output_of, replaced, succeeds,
};
use std::fs;

/// A session of an earlier run, which another one may write to.
fn session(directory: &Directory) -> String {
    let file = directory.path("session");
    json(&["run", TALES, "Once", "--cpu", "--max-tokens", "1", "--session", &file]);
    file
}

/// Links lead to the same file, whatever its name.
#[cfg(unix)]
#[test]
fn no_command_overwrites_its_input() {
    let (directory, outputs) = (Directory::new("input"), Directory::new("outputs"));
    let model = directory.model("", <[u8]>::to_vec);
    let weights = directory.0.join("model.safetensors");
    let (hard, soft) = (outputs.path("model.safetensors"), outputs.path("soft"));
    fs::hard_link(&weights, &hard).unwrap();
    std::os::unix::fs::symlink(&weights, &soft).unwrap();
    let before = fs::read(&weights).unwrap();
    for output in [
        &format!("{model}/config.json"),
        &format!("{model}/../{}/tokenizer.json", directory.0.file_name().unwrap().display()),
        &hard,
        &soft,
    ] {
        fails(&["quantize", &model, output, "--format", "prepacked", "--force"], "it is an input");
        fails(&["quantize", &model, output, "--format", "gguf-q2_0", "--force"], "it is an input");
        fails(&["bench", &model, "--cpu", "--profile", "--trace", output], "it is an input");
    }
    fails(&["quantize", &model, &outputs.path(""), "--force"], "it is an input");
    fails(&["quantize", &model, &model, "--force"], "is the input");
    fails(&["quantize", &model, &outputs.path("mlx"), "--format", "mlx"], "--format packed");
    assert!(
        fs::read(&weights).unwrap() == before && fs::symlink_metadata(&soft).unwrap().is_symlink()
    );
    // A file of the same folder that is no part of the model is another.
    let (native, gguf) = (format!("{model}/native"), format!("{model}/model.gguf"));
    for _ in 0..2 {
        succeeds(&["quantize", &model, &native, "--format", "prepacked", "--force"]);
        succeeds(&["quantize", &model, &gguf, "--format", "gguf-q2_0", "--force"]);
    }
    fails(&["quantize", &native, &native, "--format", "prepacked", "--force"], "it is an input");
}

/// The weights of this model cannot be loaded, so that whoever names the output has not tried to.
#[cfg(unix)]
#[test]
fn outputs_are_checked_before_work() {
    let directory = Directory::new("unwritable");
    let file = session(&directory);
    let broken = directory.model("model.safetensors", |bytes| {
        replaced(bytes, b"model.norm.weight\"", b"model.morn.weight\"")
    });
    let run = |file: &str, expected: &str| {
        fails(&["run", &broken, "x", "--cpu", "--session", file], expected)
    };
    run(&file, "model.norm");
    run(&format!("{file}/x"), "no such directory");
    // A file may have no byte, as where a disk is full.
    let full = |arguments: &[&str]| {
        let mut command = std::process::Command::new("sh");
        command
            .args([
                "-c",
                "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"",
                env!("CARGO_BIN_EXE_bitnet"),
            ])
            .args(arguments);
        let output = command.output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{}", errors(&output));
        errors(&output)
    };
    let error = full(&["run", &broken, "x", "--cpu", "--session", &file]);
    assert!(error.contains("File too large") && !error.contains("model.norm"), "{error}");
    for format in
        [&["--format", "packed"][..], &["--format", "gguf-q2_0"], &["--format", "prepacked"]]
    {
        let error = full(&[&["quantize", TALES, &directory.path("new/model")], format].concat());
        assert!(
            error.contains("File too large") && !directory.0.join("new").exists(),
            "{format:?}: {error}"
        );
    }
    let mut permissions = fs::metadata(&file).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&file, permissions).unwrap();
    run(&file, "is read-only");
    fails(&["quantize", TALES, &file, "--format", "prepacked", "--force"], "is read-only");
}

/// A killed process leaves one behind.
#[test]
fn writers_remove_stale_partials() {
    let directory = Directory::new("stale");
    let (packed, file) = (directory.path("packed"), session(&directory));
    fs::create_dir(&packed).unwrap();
    for target in [
        "packed/model.safetensors",
        "packed/config.json",
        "packed/tokenizer.json",
        "native",
        "model.gguf",
        "session",
    ] {
        fs::write(directory.path(&format!("{target}.abcdefghijkl.partial")), "left behind")
            .unwrap();
    }
    succeeds(&["quantize", TALES, &packed]);
    succeeds(&["quantize", TALES, &directory.path("native"), "--format", "prepacked"]);
    succeeds(&["quantize", TALES, &directory.path("model.gguf"), "--format", "gguf-q2_0"]);
    json(&["run", TALES, "Once upon", "--cpu", "--max-tokens", "1", "--session", &file]);
    for folder in [&packed, &directory.path("")] {
        let mut names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.all(|name| !name.to_string_lossy().ends_with(".partial")), "{folder}");
    }
}

/// An endless file is an error, and a pipe is read where a text is wanted.
#[cfg(unix)]
#[test]
fn inputs_are_bounded() {
    let most = "more than 16777216 bytes";
    fails(&["perplexity", TALES, "/dev/zero"], most);
    fails(&["bench", "--config", "/dev/zero"], most);
    fails(&["chat", TALES, "--cpu", "--chat-template", "/dev/zero"], "more than 1048576 bytes");
    for command in [&["run", TALES][..], &["run", TALES, "-"]] {
        let output = bitnet(command).stdin(fs::File::open("/dev/zero").unwrap()).output().unwrap();
        assert!(!output.status.success() && errors(&output).contains(most), "{}", errors(&output));
    }
    let output = output_of(
        &["embed", TALES, "--cpu"],
        &[b"bear\n", &vec![b'x'; 1 << 20][..], b"yy\n"].concat(),
    );
    assert!(
        !output.status.success() && errors(&output).contains("text 1 has more than 1048576 bytes"),
        "{}",
        errors(&output)
    );
    let output = output_of(&["run", TALES, "--cpu"], b"Once \xff");
    assert!(
        !output.status.success() && errors(&output).contains("is not UTF-8: byte 5 is wrong"),
        "{}",
        errors(&output)
    );
    let piped = output_of(
        &["perplexity", TALES, "/dev/stdin", "--cpu", "--max-tokens", "9"],
        &fs::read(HELDOUT).unwrap(),
    );
    assert!(
        piped.status.success() && piped.stdout.starts_with(b"perplexity "),
        "{}",
        errors(&piped)
    );
    fails(
        &["bench", TALES, "--cpu", "--batch-sizes", "18446744073709551615"],
        "1 to 4096 are accepted",
    );
}

#[cfg(unix)]
#[test]
fn names_command_no_terminal() {
    let directory = Directory::new("commanding");
    let name = "\u{1b}[2J\n\u{202e}fgug";
    let model = Directory(directory.0.join(name));
    fs::create_dir(&model.0).unwrap();
    let (path, shown) = (model.model("", <[u8]>::to_vec), "\\u{1b}[2J\\n\\u{202e}fgug");
    let missing = format!("{path}/missing");
    for arguments in [
        &["info", &path][..],
        &["run", &missing, "x"],
        &[
            "run",
            &path,
            "x",
            "--session",
            &missing,
            "--max-tokens",
            "1",
            "--cpu",
            "--speculate",
            &missing,
        ],
        &["run", &path, "x", "--session", &format!("{missing}/s"), "--cpu"],
        &["run", TALES, "x", "--session", &format!("{path}/config.json"), "--cpu"],
        &["perplexity", TALES, &missing],
        &["bench", "--config", &missing],
        &["bench", "--config", &format!("{path}/tokenizer.json")],
        &["chat", TALES, "--chat-template", &missing],
        &["quantize", &path, &path, "--force"],
        &["quantize", &missing, "x"],
        &["quantize", TALES, &format!("{path}/config.json/x"), "--format", "prepacked"],
    ] {
        let output = bitnet(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &errors(&output);
        assert!(
            text.contains(shown) && !text.contains(['\u{1b}', '\u{202e}']),
            "{arguments:?}: {text:?}"
        );
    }
    assert!(!succeeds(&["info", &path]).contains('\u{1b}'));
}

/// Names of files are bytes on Unix.
#[cfg(target_os = "linux")]
#[test]
fn paths_need_not_be_utf8() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let directory = Directory::new("bytes");
    let model = Directory(directory.0.join(OsStr::from_bytes(b"m\xff")));
    fs::create_dir(&model.0).unwrap();
    model.model("", <[u8]>::to_vec);
    let at = |name: &[u8]| directory.0.join(OsStr::from_bytes(name));
    let run = |arguments: &[&OsStr], input: &OsStr| {
        let output =
            bitnet(&[]).args(arguments).stdin(fs::File::open(input).unwrap()).output().unwrap();
        assert!(
            output.status.success() && !output.stdout.is_empty(),
            "{arguments:?}: {}",
            errors(&output)
        );
    };
    let (path, text) = (model.0.as_os_str(), at(b"text\xfe"));
    fs::write(&text, "Once upon a time").unwrap();
    let word = |word: &'static str| OsStr::new(word);
    run(&[word("info"), path], word("/dev/null"));
    run(&[word("perplexity"), path, text.as_os_str(), word("--cpu")], word("/dev/null"));
    run(&[word("embed"), path, word("bear"), word("--cpu")], word("/dev/null"));
    run(&[word("chat"), path, word("--cpu"), word("--max-tokens"), word("1")], text.as_os_str());
    let (native, session) = (at(b"native\xfd"), at(b"session\xfc"));
    run(
        &[word("quantize"), path, native.as_os_str(), word("--format"), word("prepacked")],
        word("/dev/null"),
    );
    let once = [
        word("Once"),
        word("--cpu"),
        word("--max-tokens"),
        word("1"),
        word("--session"),
        session.as_os_str(),
    ];
    for model in [path, native.as_os_str()] {
        run(
            &[&[word("run"), model, word("--speculate"), path], &once[..]].concat(),
            word("/dev/null"),
        );
    }
    assert!(std::path::Path::new(&native).exists() && session.exists());
}
