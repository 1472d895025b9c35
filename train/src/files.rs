//! Files of text, and the lines of JSON Lines.

use crate::{
    chat::{Turns, conversation},
    error::{Error, Result},
};
use bitnet_wgpu::{Error as LibraryError, internals::files::read};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The largest file of text, in bytes: it is in memory as a whole. Larger texts are cut into
/// several files.
const MOST_FILE: u64 = 4 << 30;

/// The most files of a folder.
const MOST_FILES: usize = 1 << 20;

/// How a file holds text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// One document.
    Text,
    /// A document or a conversation per line.
    Lines,
}

/// What a line of JSON Lines is.
#[derive(Debug)]
pub enum Line {
    Text(String),
    Chat(Turns),
}

/// Returns all files of some paths: files as they are, those of folders in the order of their paths.
///
/// # Errors
/// [`Error::Data`] for a file that is not of text, and for a folder without text.
pub fn files(paths: &[PathBuf]) -> Result<Vec<(PathBuf, FileKind)>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            list(path, &mut files)?;
        } else {
            let kind = kind(path).ok_or_else(|| {
                data(path, None, "is neither a folder nor a file of .txt or .jsonl")
            })?;
            files.push((path.clone(), kind));
        }
    }
    Ok(files)
}

fn kind(path: &Path) -> Option<FileKind> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "txt" => Some(FileKind::Text),
        "jsonl" => Some(FileKind::Lines),
        _ => None,
    }
}

pub fn data(path: &Path, line: Option<usize>, problem: impl Into<String>) -> Error {
    Error::Data { path: path.to_owned(), line, problem: problem.into() }
}

/// Adds the files of text in a folder and the folders within it, sorted by their paths. Links to
/// folders are not followed.
fn list(folder: &Path, files: &mut Vec<(PathBuf, FileKind)>) -> Result<()> {
    let io = |source| LibraryError::Io { path: folder.to_owned(), source };
    let mut entries =
        fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>).map_err(io)?;
    entries.sort_by_key(fs::DirEntry::path);
    let before = files.len();
    for entry in entries {
        let path = entry.path();
        if entry.file_type().map_err(io)?.is_dir() {
            // A folder without text within the folder is fine.
            match list(&path, files) {
                Err(Error::Data { line: None, .. }) => {}
                other => other?,
            }
        } else if let Some(kind) = kind(&path) {
            files.push((path, kind));
        }
        if files.len() > MOST_FILES {
            return Err(data(folder, None, format!("has more than {MOST_FILES} files")));
        }
    }
    if files.len() == before {
        return Err(data(folder, None, "has no files of .txt or .jsonl"));
    }
    Ok(())
}

/// Returns the text of a file, without a byte order mark.
///
/// # Errors
/// [`Error::Data`] with the line that is not UTF-8; what the disk reports.
pub fn contents(path: &Path) -> Result<String> {
    let mut text = String::from_utf8(read(path, MOST_FILE)?).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
        data(path, Some(line), "is not UTF-8")
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

/// Parses a line of JSON Lines.
///
/// # Errors
/// What is wrong with it, and what is accepted.
pub fn line(line: &str) -> Result<Line, String> {
    let json: Value =
        serde_json::from_str(line).map_err(|error| format!("is not JSON: {error}; {ACCEPTED}"))?;
    let field = |name: &str| json.get(name).filter(|value| !value.is_null());
    match (field("text"), field("messages")) {
        (Some(_), Some(_)) => Err(format!("has both `text` and `messages`; {ACCEPTED}")),
        (_, Some(_)) => Ok(Line::Chat(conversation(&json)?)),
        (Some(Value::String(text)), _) => Ok(Line::Text(text.clone())),
        (Some(_), _) => Err(format!("`text` is not a string; {ACCEPTED}")),
        (None, None) => Err(format!("has no field `text` or `messages`; {ACCEPTED}")),
    }
}

const ACCEPTED: &str = r#"a line such as {"text": "Once upon a time"} or {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]} is needed"#;
