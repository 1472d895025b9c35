//! `bitnet completions` and `bitnet man`

use crate::{Directory, fails, succeeds};
use std::fs;

#[test]
fn shells_complete_commands_and_options() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeds(&["completions", shell]);
        assert!(script.contains("tokenize") && script.contains("max-tokens"), "{shell}");
    }
    fails(&["completions", "cmd"], "bash");
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = Directory::new("man");
    succeeds(&["man", &directory.path("")]);
    for name in ["bitnet.1", "bitnet-run.1", "bitnet-chat.1"] {
        let page = fs::read_to_string(directory.path(name)).unwrap();
        assert!(page.contains(".SH"), "{name}");
    }
    fails(&["man", &directory.path("none")], "none");
}
