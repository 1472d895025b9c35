//! Commands within a conversation: lines that begin with a slash.

use std::fmt::Write as _;

/// A command, with its argument.
#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Bye,
    Clear,
    Help,
    Load(&'a str),
    Regenerate,
    Save(&'a str),
    Set(&'a str, &'a str),
    System(&'a str),
}

/// A command's name, its argument, and what it does.
struct Described(&'static str, &'static str, &'static str);

const COMMANDS: [Described; 8] = [
    Described("/help", "", "show this list"),
    Described("/clear", "", "start a new conversation with the same system message"),
    Described("/regenerate", "", "answer the last message again, with another seed"),
    Described("/system", "[TEXT]", "set the system message; without TEXT, remove it"),
    Described("/set", "NAME VALUE", "change an option of generation, as in `/set temperature 0.5`"),
    Described("/save", "FILE", "write the conversation to a new JSON file"),
    Described("/load", "FILE", "continue the conversation of a JSON file"),
    Described("/bye", "", "quit"),
];

/// Returns the names of the commands.
pub fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|command| command.0)
}

/// Returns the text of `/help`.
pub fn help() -> String {
    let mut text = String::new();
    for Described(name, argument, what) in COMMANDS {
        let usage = format!("{name} {argument}");
        // Writing to a string does not fail.
        let _ = writeln!(text, "{usage:<18} {what}");
    }
    text += "Ctrl-C stops an answer, Ctrl-D quits.\n";
    text += "A message of several lines: end a line with \\, or put \"\"\" before and after it.";
    text
}

/// Returns the command of a message, or nothing if the message is none. A message that begins with
/// a path is no command.
///
/// # Errors
/// An unknown command, and one with a wrong argument.
pub fn parse(message: &str) -> Option<Result<Command<'_>, String>> {
    let (name, rest) = message.split_once(char::is_whitespace).unwrap_or((message, ""));
    let word = name.strip_prefix('/')?;
    if !word.chars().all(char::is_alphabetic) {
        return None;
    }
    Some(command(name, rest.trim()))
}

fn command<'a>(name: &str, rest: &'a str) -> Result<Command<'a>, String> {
    let Some(Described(_, argument, _)) = COMMANDS.iter().find(|command| command.0 == name) else {
        let names: Vec<_> = names().collect();
        return Err(format!("unknown command {name}; commands: {}", names.join(", ")));
    };
    let usage = || format!("usage: {name} {argument}").trim_end().to_owned();
    match (name, rest) {
        ("/system", text) => Ok(Command::System(text)),
        ("/save", file) if !file.is_empty() => Ok(Command::Save(file)),
        ("/load", file) if !file.is_empty() => Ok(Command::Load(file)),
        ("/set", option) => {
            let (name, value) = option.split_once(char::is_whitespace).ok_or_else(usage)?;
            Ok(Command::Set(name, value.trim()))
        }
        ("/bye", "") => Ok(Command::Bye),
        ("/clear", "") => Ok(Command::Clear),
        ("/help", "") => Ok(Command::Help),
        ("/regenerate", "") => Ok(Command::Regenerate),
        _ => Err(usage()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed() {
        assert_eq!(parse("/bye"), Some(Ok(Command::Bye)));
        assert_eq!(parse("/system  Be short. "), Some(Ok(Command::System("Be short."))));
        assert_eq!(parse("/set top-k  5"), Some(Ok(Command::Set("top-k", "5"))));
        for (wrong, error) in [
            ("/nope", "unknown command /nope; commands: /help, /clear,"),
            ("/", "unknown command /;"),
            ("/save", "usage: /save FILE"),
            ("/set temperature", "usage: /set NAME VALUE"),
            ("/clear all", "usage: /clear"),
        ] {
            let found = parse(wrong).unwrap().unwrap_err();
            assert!(found.starts_with(error), "{wrong}: {found}");
        }
    }

    #[test]
    fn paths_are_no_commands() {
        for message in ["/etc/passwd is a file", "Hi /bye", "", "/2 of it"] {
            assert_eq!(parse(message), None);
        }
    }

    #[test]
    fn help_lists_every_command() {
        assert!(names().all(|name| help().contains(name) && parse(name).is_some()));
    }
}
