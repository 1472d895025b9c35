//! Options of older releases.

use crate::{TALES, bitnet, errors, succeeds};
use bitnet_cli::{
    command::Arguments,
    renamed::{RENAMED, has, replaced},
};
use clap::CommandFactory as _;
use std::ffi::OsString;

fn replaced_in(command: &str, rest: &[&str]) -> (Vec<String>, Vec<String>) {
    let arguments = ["bitnet", command].into_iter().chain(rest.iter().copied());
    let arguments = arguments.map(OsString::from);
    let (arguments, notices) = replaced(arguments, &Arguments::command());
    let text = |argument: OsString| argument.into_string().unwrap();
    (arguments.into_iter().skip(2).map(text).collect(), notices)
}

#[test]
fn renamed_options_are_accepted_with_a_notice() {
    let command = Arguments::command();
    for (old, new) in RENAMED {
        let commands: Vec<_> = command.get_subcommands().filter(|c| has(c, new)).collect();
        assert!(!commands.is_empty(), "no command has {new}");
        for subcommand in commands {
            let name = subcommand.get_name();
            assert!(!has(subcommand, old), "{name} has {old} too");
            let (arguments, notices) = replaced_in(name, &[old, "7"]);
            assert_eq!(arguments, [new, "7"], "{name}");
            assert_eq!(notices, [format!("`{old}` is now `{}`", new.replace('=', " "))]);
            let help = succeeds(&[name, "--help"]);
            let is_shown = help.split_whitespace().any(|word| word == old);
            assert!(!is_shown, "{old} is in the help of {name}");
        }
    }
}

#[test]
fn only_option_names_are_replaced() {
    let run = |rest: &[&str]| replaced_in("run", rest);
    assert_eq!(run(&["--ids=1,2"]).0, ["--token-ids=1,2"]);
    for rest in [&["x", "--stop", "--ids"][..], &["--", "--ids"], &["ids", "-ids", "--idsx"]] {
        assert_eq!(run(rest), (rest.iter().map(ToString::to_string).collect(), vec![]));
    }
    // `info` has no option in place of this one, so the parser reports it.
    assert_eq!(replaced_in("info", &["--ids"]).0, ["--ids"]);
}

#[test]
fn a_renamed_option_still_works() {
    let run = |option| {
        let arguments = ["run", TALES, option, "5,6", "--greedy", "--max-tokens", "3", "--cpu"];
        let output = bitnet(&arguments).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        (output.stdout.clone(), errors(&output))
    };
    let (old, new) = (run("--ids"), run("--token-ids"));
    assert_eq!(old.0, new.0);
    let notice = "`--ids` is now `--token-ids`";
    assert!(old.1.contains(notice) && !new.1.contains(notice), "{} {}", old.1, new.1);
}
