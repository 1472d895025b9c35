//! `bitnet chat` in a pseudo-terminal: line editing, interrupts and wrapping.

use crate::{Directory, TALES};
use rexpect::session::{PtySession, spawn_command};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use std::{fs, process::Command};

const TIMEOUT_MS: u64 = 120_000;
const COLUMNS: u16 = 40;
const UP: &str = "\u{1b}[A";

/// Starts a conversation in a terminal, up to its first prompt.
fn chat(directory: &Directory, options: &[&str]) -> PtySession {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
    command.args(["chat", TALES, "--cpu", "--ignore-eos"]).args(options);
    command.env("XDG_STATE_HOME", &directory.0).env("TERM", "xterm").env_remove("NO_COLOR");
    if options.contains(&"--no-history") {
        command.env("NO_COLOR", "1");
    }
    let mut session = spawn_command(command, Some(TIMEOUT_MS)).unwrap();
    let size = Winsize { ws_row: 24, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(session.process().get_file_handle().unwrap(), size).unwrap();
    session.exp_string("> ").unwrap();
    session
}

/// Sends a line and its end.
fn send(session: &mut PtySession, line: &str) {
    session.send(&format!("{line}\r")).unwrap();
    session.flush().unwrap();
}

/// Interrupts an answer once it has begun, and returns what was shown of it.
fn interrupted(session: &mut PtySession) -> String {
    session.exp_string("tale.").unwrap();
    let (before, start) = session.exp_regex("[a-z]{2,} [a-z]{2,} [a-z]{2,}").unwrap();
    session.send_control('c').unwrap();
    let rest = session.exp_string("; interrupted)").unwrap();
    session.exp_string("> ").unwrap();
    format!("{before}{start}{rest}")
}

#[test]
fn an_interrupt_keeps_the_conversation() {
    let directory = Directory::new("terminal");
    let mut session = chat(&directory, &["--max-tokens", "450"]);
    send(&mut session, "/nope");
    session.exp_string("unknown command /nope; commands: /help").unwrap();
    session.exp_string("> ").unwrap();
    send(&mut session, "Tell me a tale.");
    let answer = interrupted(&mut session);
    let lines = answer.split('\n').map(|line| line.split('\u{1b}').next().unwrap_or_default());
    let widest = lines.map(|line| line.trim_end().chars().count()).max().unwrap();
    assert!(widest <= COLUMNS.into(), "{answer}");
    assert!(answer.contains("\u{1b}[2m("), "notes are dim: {answer}");
    // The last message of the history.
    send(&mut session, UP);
    interrupted(&mut session);
    send(&mut session, "/set max-tokens 2");
    session.exp_string("> ").unwrap();
    send(&mut session, "a\\\rb");
    session.exp_string("stopped at --max-tokens)").unwrap();
    session.exp_string("> ").unwrap();
    let file = directory.path("talk.json");
    send(&mut session, &format!("/save {file}"));
    session.exp_string("saved: ").unwrap();
    session.exp_string("> ").unwrap();
    session.send_control('d').unwrap();
    session.exp_eof().unwrap();
    let saved: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    let of = |role: &str| {
        let is = |message: &&Value| message["role"] == role;
        messages.iter().filter(is).map(|m| m["content"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of("user"), ["Tell me a tale.", "Tell me a tale.", "a\nb"]);
    assert!(of("assistant").iter().all(|answer| !answer.is_empty()), "{saved}");
    let history = fs::read_to_string(directory.path("bitnet/chat_history")).unwrap();
    assert!(history.contains("Tell me a tale.") && history.contains("/nope"), "{history}");
}

#[test]
fn no_color_and_no_history_are_honored() {
    let directory = Directory::new("plain");
    let mut session = chat(&directory, &["--max-tokens", "3", "--no-history"]);
    send(&mut session, "Tell me a tale.");
    let answer = session.exp_string("stopped at --max-tokens)").unwrap();
    session.exp_string("> ").unwrap();
    session.send_control('c').unwrap();
    session.exp_string("(Ctrl-D or /bye quits)").unwrap();
    session.send_control('d').unwrap();
    session.exp_eof().unwrap();
    assert!(!answer.contains("\u{1b}[2m"), "{answer}");
    assert!(!fs::exists(directory.path("bitnet")).unwrap());
}
