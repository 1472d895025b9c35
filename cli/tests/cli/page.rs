//! docs/reference/cli.md: what follows its head is generated from the program.

use bitnet_cli::command::Arguments;
use clap::{Arg, Command, CommandFactory as _};
use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

const MARK: &str = "<!-- From here on generated: UPDATE=1 cargo test --test cli -- page -->\n";

#[test]
fn the_page_of_commands_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/cli.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, _) = page.split_once(MARK).expect("a mark after the head");
    let expected = format!("{head}{MARK}{}", reference());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    assert!(page == expected, "docs/reference/cli.md: run UPDATE=1 cargo test --test cli -- page");
}

/// Returns a section for each command, then one for each group of options that commands share.
fn reference() -> String {
    let mut command = Arguments::command();
    command.build();
    let mut page = String::new();
    let mut groups = BTreeMap::new();
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        page += &section(command, &mut groups);
    }
    for (group, table) in groups {
        write!(page, "\n## {group} options\n\n{table}").unwrap();
    }
    page
}

fn section(command: &Command, groups: &mut BTreeMap<String, String>) -> String {
    let usage = command.clone().render_usage().to_string();
    let about = command.get_long_about().or(command.get_about()).unwrap().to_string();
    let mut text = format!(
        "\n## bitnet {}\n\n{}\n\n    {}\n\n",
        command.get_name(),
        about.trim(),
        usage.trim_start_matches("Usage: ").trim()
    );
    let (mut own, mut shared) = (Vec::new(), BTreeMap::<_, Vec<&Arg>>::new());
    for argument in command.get_arguments().filter(|argument| is_shown(argument)) {
        match argument.get_help_heading() {
            Some(heading) => shared.entry(heading.to_owned()).or_default().push(argument),
            None => own.push(argument),
        }
    }
    text += &table(&own);
    let links: Vec<_> = shared
        .keys()
        .map(|group| format!("[{group}](#{}-options)", group.to_lowercase().replace(' ', "-")))
        .collect();
    if !links.is_empty() {
        writeln!(text, "\nMore options: {}.", links.join(", ")).unwrap();
    }
    for (group, arguments) in shared {
        let table = table(&arguments);
        let first = groups.entry(group.clone()).or_insert_with(|| table.clone());
        assert_eq!(*first, table, "{group} of {}", command.get_name());
    }
    text
}

fn is_shown(argument: &Arg) -> bool {
    argument.get_id() != "help" && !argument.is_hide_set()
}

fn table(arguments: &[&Arg]) -> String {
    let mut text = "| | |\n| --- | --- |\n".to_owned();
    for argument in arguments {
        let name = argument.to_string().replace('|', "\\|");
        let help = argument.get_long_help().or(argument.get_help()).unwrap().to_string();
        // A paragraph ends with a full stop, where another follows.
        let paragraphs: Vec<_> = help.split("\n\n").map(|part| part.trim()).collect();
        let help = paragraphs.join(". ").replace(".. ", ". ");
        let help: Vec<_> = help.split_whitespace().collect();
        let mut help = help.join(" ").replace('|', "\\|");
        let is_flag = !argument.get_action().takes_values();
        let default: Vec<_> =
            argument.get_default_values().iter().filter_map(|v| v.to_str()).collect();
        if !default.is_empty() && !is_flag {
            write!(help, " [default: {}]", default.join(",")).unwrap();
        }
        let values = argument.get_possible_values();
        let values: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
        if !values.is_empty() && !is_flag {
            let value = |value: &&clap::builder::PossibleValue| match value.get_help() {
                Some(help) => format!("`{}` ({help})", value.get_name()),
                None => format!("`{}`", value.get_name()),
            };
            let values: Vec<_> = values.iter().map(value).collect();
            write!(help, " [values: {}]", values.join(", ")).unwrap();
        }
        writeln!(text, "| `{name}` | {help} |").unwrap();
    }
    text
}
