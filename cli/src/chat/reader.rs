//! Messages of a person: lines of a terminal, with editing and history, or of a pipe.

use super::command;
use crate::{
    input::{Line, Lines, MAX_TEXT},
    note,
};
use anyhow::{Context as _, Result};
use rustyline::{
    Config, Context, Editor, Helper,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use std::{
    env, fs,
    io::{StdinLock, stdin},
    path::{Path, PathBuf},
};

/// Starts and ends a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Messages that the history keeps.
const MAX_HISTORY: usize = 1000;

const PROMPT: &str = "> ";

/// A message, or why it is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    Text(String),
    Refused(String),
}

/// The source of messages.
pub enum Reader {
    Terminal(Box<Terminal>),
    Lines(Lines<StdinLock<'static>>),
}

impl Reader {
    /// Reads from a terminal, with a history unless it is not wanted, or else from standard input.
    pub fn new(is_terminal: bool, has_history: bool) -> Result<Self> {
        Ok(match is_terminal {
            true => Self::Terminal(Box::new(Terminal::new(has_history)?)),
            false => Self::Lines(Lines::new(stdin().lock(), MAX_TEXT)),
        })
    }

    /// Returns the next message; nothing at the end of the input.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        let entry = match self {
            Self::Terminal(terminal) => terminal.next_text()?.map(Entry::Text),
            Self::Lines(lines) => next_entry(lines)?,
        };
        Ok(entry.map(|entry| match entry {
            Entry::Text(text) => Entry::Text(message(&text)),
            refused => refused,
        }))
    }
}

/// Reads lines until a message is complete.
fn next_entry(lines: &mut Lines<StdinLock>) -> Result<Option<Entry>> {
    let mut text = String::new();
    let mut is_too_long = false;
    while let Some(line) = lines.next_line().context("standard input")? {
        match line {
            Line::Text(line) => text += &line,
            Line::Repaired(line) => {
                note("the line is not UTF-8; U+FFFD replaces invalid bytes");
                text += &line;
            }
            Line::TooLong => is_too_long = true,
        }
        is_too_long |= text.len() as u64 > MAX_TEXT;
        if is_too_long {
            return Ok(Some(Entry::Refused(format!(
                "message ignored: more than {MAX_TEXT} bytes"
            ))));
        }
        if is_complete(&text) {
            return Ok(Some(Entry::Text(text)));
        }
        text.push('\n');
    }
    Ok((!text.is_empty()).then_some(Entry::Text(text)))
}

/// Tests whether a message ends with its last line.
fn is_complete(text: &str) -> bool {
    match text.trim().strip_prefix(QUOTES) {
        Some(rest) => rest.ends_with(QUOTES),
        None => !text.ends_with('\\'),
    }
}

/// Returns the message of lines that are complete, without the marks of several lines.
fn message(text: &str) -> String {
    let text = text.trim();
    match text.strip_prefix(QUOTES) {
        Some(rest) => rest.strip_suffix(QUOTES).unwrap_or(rest).trim_matches('\n').to_owned(),
        None => text.replace("\\\n", "\n"),
    }
}

/// A terminal with line editing.
pub struct Terminal {
    editor: Editor<Rules, FileHistory>,
    history: Option<PathBuf>,
}

impl Terminal {
    fn new(has_history: bool) -> Result<Self> {
        let config = Config::builder().max_history_size(MAX_HISTORY)?.history_ignore_space(true);
        let mut editor = Editor::with_config(config.build())?;
        editor.set_helper(Some(Rules));
        let history = if has_history { history_file() } else { None };
        if let Some(file) = history.as_deref().filter(|file| file.exists())
            && let Err(error) = editor.load_history(file)
        {
            log::warn!("the history of earlier conversations is not available: {error}");
        }
        Ok(Self { editor, history })
    }

    /// Reads a message; nothing after Ctrl-D.
    fn next_text(&mut self) -> Result<Option<String>> {
        loop {
            match self.editor.readline(PROMPT) {
                Ok(text) => {
                    self.remember(&text);
                    return Ok(Some(text));
                }
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Interrupted) => note("(Ctrl-D or /bye quits)"),
                Err(ReadlineError::Signal(_)) => {}
                Err(error) => return Err(error).context("reading from the terminal"),
            }
        }
    }

    /// Adds a message to the history and its file.
    fn remember(&mut self, text: &str) {
        let Ok(true) = self.editor.add_history_entry(text) else { return };
        let Some(file) = &self.history else { return };
        let folder = file.parent().unwrap_or(Path::new("."));
        let made = fs::create_dir_all(folder).map_err(ReadlineError::from);
        if let Err(error) = made.and_then(|()| self.editor.append_history(file)) {
            log::warn!("the history cannot be saved: {error}");
            self.history = None;
        }
    }
}

/// Returns the file of messages of earlier conversations, if there is a place for it.
fn history_file() -> Option<PathBuf> {
    let state = env::var_os("XDG_STATE_HOME").filter(|folder| !folder.is_empty());
    let folder = match state {
        Some(folder) => PathBuf::from(folder),
        None => env::home_dir()?.join(".local").join("state"),
    };
    Some(folder.join("bitnet").join("chat_history"))
}

/// What the editor knows of messages: when they are complete, and the names of commands.
struct Rules;

impl Helper for Rules {}

impl Highlighter for Rules {}

impl Hinter for Rules {
    type Hint = String;
}

impl Validator for Rules {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(match is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Completer for Rules {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        end: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let start = line.get(..end).unwrap_or(line);
        let is_name = start.starts_with('/');
        let names = command::names().filter(|name| is_name && name.starts_with(start));
        Ok((0, names.map(str::to_owned).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_several_lines() {
        for (text, complete) in [
            ("one", true),
            ("one\\", false),
            ("one\\\ntwo", true),
            ("\"\"\"", false),
            ("\"\"\"\none", false),
            ("\"\"\"\none\ntwo\"\"\"", true),
        ] {
            assert_eq!(is_complete(text), complete, "{text}");
        }
        assert_eq!(message("one\\\ntwo "), "one\ntwo");
        assert_eq!(message("\"\"\"\none\\\n\ntwo\n\"\"\""), "one\\\n\ntwo");
    }
}
