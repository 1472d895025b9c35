//! Text as windows of tokens.

use crate::{
    error::{Error, Result},
    random::Random,
};
use bitnet_wgpu::{
    Error as LibraryError,
    internals::files::{display, read},
    model::Tokenizer,
};
use rayon::prelude::*;
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

/// The most windows: their order has 32-bit numbers.
const MOST_WINDOWS: usize = u32::MAX as usize;

/// Bytes of a text that are encoded at once. Encoding takes up to 200 times as much memory.
const PIECE: usize = 64 << 10;

/// Token ids of all documents, one after another, cut into windows.
#[derive(Clone, Debug)]
pub struct Corpus {
    ids: Vec<u32>,
    /// Tokens of a window, without the one that is predicted last.
    context: usize,
    windows: usize,
}

impl Corpus {
    /// Reads text files (`.txt`: a document each) and JSON Lines (`.jsonl`: a document a line, as
    /// `{"text": ".."}`). Of folders, it reads all such files, in the order of their paths. A
    /// document is the tokenizer's BOS if it has one that is not `end`, the text, and `end`. Names of special tokens
    /// in the text become those tokens. Long texts are encoded in pieces that end with a line.
    ///
    /// # Errors
    /// [`Error::Data`] for a file or a line that is not text, with the line's number;
    /// [`Error::TooShort`] for fewer tokens than a window of `context` and the one after it.
    pub fn read(
        paths: &[PathBuf],
        tokenizer: &Tokenizer,
        end: u32,
        context: usize,
    ) -> Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() {
                list(path, &mut files)?;
            } else {
                kind(path).ok_or_else(|| unknown(path))?;
                files.push(path.clone());
            }
        }
        let mut ids = Vec::new();
        for file in &files {
            for (line, text) in documents(file)? {
                let encoded = encode(tokenizer, &text)
                    .map_err(|error| data(file, line, error.to_string()))?;
                if encoded.is_empty() {
                    continue;
                }
                ids.extend(tokenizer.bos().filter(|&bos| bos != end));
                ids.extend(encoded);
                ids.push(end);
            }
        }
        Self::from_ids(ids, context)
    }

    /// Cuts tokens into windows of `context`, each of which ends with the first token of the next.
    ///
    /// # Errors
    /// [`Error::TooShort`] for fewer tokens than one window has; [`Error::Setting`] for more than
    /// 2^32 - 1 windows.
    pub fn from_ids(ids: Vec<u32>, context: usize) -> Result<Self> {
        let context = context.max(1);
        let windows = ids.len().saturating_sub(1) / context;
        if windows > MOST_WINDOWS {
            let accepted = format!("at most {MOST_WINDOWS} are supported: take a longer context");
            return Err(Error::setting("the number of windows", windows, accepted));
        }
        if windows == 0 {
            let what = format!("a window of {context} and the token after it");
            let needed = context.saturating_add(1);
            return Err(Error::TooShort { tokens: ids.len(), needed, what });
        }
        Ok(Self { ids, context, windows })
    }

    /// Takes the last windows away, as text that is not trained on.
    ///
    /// # Errors
    /// [`Error::TooShort`] if none would be left on either side.
    pub fn split(mut self, held_out: usize) -> Result<(Self, Self)> {
        if held_out == 0 || held_out >= self.windows {
            let windows = held_out.max(1).saturating_add(1);
            let needed = windows.saturating_mul(self.context).saturating_add(1);
            let what = format!("{} windows of {} are held out", held_out.max(1), self.context);
            return Err(Error::TooShort { tokens: self.ids.len(), needed, what });
        }
        let left = self.windows - held_out;
        let rest = self.ids[left * self.context..].to_vec();
        self.ids.truncate(left * self.context + 1);
        self.windows = left;
        let rest = Self { ids: rest, context: self.context, windows: held_out };
        Ok((self, rest))
    }

    /// Returns the number of windows.
    pub fn windows(&self) -> usize {
        self.windows
    }

    /// Returns all tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns a window's tokens and the one after them, `context + 1` ids.
    ///
    /// # Panics
    /// If there are not more than `index` windows.
    pub fn window(&self, index: usize) -> &[u32] {
        &self.ids[index * self.context..][..self.context + 1]
    }

    /// Returns a number that differs, but for chance, for other tokens or windows (FNV-1a).
    pub fn fingerprint(&self) -> u64 {
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x100_0000_01b3);
        let start = mix(0xcbf2_9ce4_8422_2325, self.context as u64);
        self.ids.iter().fold(start, |hash, &id| mix(hash, id.into()))
    }
}

/// The order of windows: a permutation for each epoch, which follows from a seed.
pub struct Order {
    seed: u64,
    epoch: u64,
    windows: Vec<u32>,
}

impl Order {
    /// Makes the order of this many windows.
    pub fn new(seed: u64, windows: usize) -> Self {
        let mut order = Self { seed, epoch: 0, windows: (0..windows as u32).collect() };
        order.shuffle(0);
        order
    }

    /// Returns the window at a position, counted from the start of training.
    pub fn at(&mut self, position: u64) -> usize {
        let count = self.windows.len() as u64;
        if position / count != self.epoch {
            self.shuffle(position / count);
        }
        self.windows[(position % count) as usize] as usize
    }

    /// Fisher-Yates.
    fn shuffle(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.windows = (0..self.windows.len() as u32).collect();
        let mut random = Random::new(self.seed, 1 << 63 | epoch);
        for i in (1..self.windows.len()).rev() {
            self.windows.swap(i, random.below(i + 1));
        }
    }
}

/// How a file holds text.
#[derive(Clone, Copy)]
enum FileKind {
    Text,
    Lines,
}

fn kind(path: &Path) -> Option<FileKind> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "txt" => Some(FileKind::Text),
        "jsonl" => Some(FileKind::Lines),
        _ => None,
    }
}

fn unknown(path: &Path) -> Error {
    data(path, None, "is neither a folder nor a file of .txt or .jsonl")
}

fn data(path: &Path, line: Option<usize>, problem: impl Into<String>) -> Error {
    Error::Data { path: path.to_owned(), line, problem: problem.into() }
}

/// Adds the files of text in a folder and the folders within it, sorted by their paths. Links to
/// folders are not followed.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
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
        } else if kind(&path).is_some() {
            files.push(path);
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

/// Returns the documents of a file, with their lines in JSON Lines.
fn documents(path: &Path) -> Result<Vec<(Option<usize>, String)>> {
    let bytes = read(path, MOST_FILE)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
        data(path, Some(line), "is not UTF-8")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    match kind(path) {
        Some(FileKind::Text) => Ok(vec![(None, text.to_owned())]),
        Some(FileKind::Lines) => text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(i, line)| Ok((Some(i + 1), text_of(path, i + 1, line)?)))
            .collect(),
        None => Err(unknown(path)),
    }
}

/// Returns the text of a line of JSON Lines.
fn text_of(path: &Path, number: usize, line: &str) -> Result<String> {
    let json: Value = serde_json::from_str(line)
        .map_err(|error| data(path, Some(number), format!("is not JSON: {error}; {ACCEPTED}")))?;
    match json.get("text") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(data(path, Some(number), format!("`text` is not a string; {ACCEPTED}"))),
        None => Err(data(path, Some(number), format!("has no field `text`; {ACCEPTED}"))),
    }
}

const ACCEPTED: &str = r#"a line such as {"text": "Once upon a time"} is needed"#;

/// Encodes a text in pieces, side by side.
fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, LibraryError> {
    let pieces: Vec<Vec<u32>> = pieces(text)
        .into_par_iter()
        .map(|piece| tokenizer.encode_plain(piece))
        .collect::<Result<_, _>>()?;
    Ok(pieces.concat())
}

/// Cuts a text after the first line that ends beyond [`PIECE`] bytes, and so on. A piece does not
/// begin with white space, which tokenizers join with what is before it. A text without lines is
/// cut at characters, at 16 times as many bytes.
fn pieces(text: &str) -> Vec<&str> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while rest.len() > PIECE {
        let ends = rest.as_bytes().windows(2).skip(PIECE - 1);
        let end = ends
            .take(15 * PIECE)
            .position(|pair| pair[0] == b'\n' && !pair[1].is_ascii_whitespace());
        let end = match end {
            Some(at) => PIECE + at,
            None => {
                let most = rest.len().min(16 * PIECE);
                (0..=most).rev().find(|&end| rest.is_char_boundary(end)).unwrap_or(most)
            }
        };
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

/// Returns the token that ends documents: the first of config.json, or else the tokenizer's.
///
/// # Errors
/// [`Error::Setting`] if there is none, or the tokenizer has more tokens than the model.
pub fn end_of_text(
    tokenizer: &Tokenizer,
    config: &bitnet_wgpu::formats::ModelConfig,
    folder: &Path,
) -> Result<u32> {
    if tokenizer.vocab_size() > config.vocab {
        let accepted =
            format!("the vocab_size of config.json, {}, must be at least as large", config.vocab);
        return Err(Error::setting("the tokenizer's vocabulary", tokenizer.vocab_size(), accepted));
    }
    let end = config.eos.first().or(tokenizer.eos().first()).copied();
    end.filter(|&end| (end as usize) < config.vocab).ok_or_else(|| {
        let accepted = "config.json (eos_token_id) or the tokenizer must name one";
        Error::setting("the end-of-text token", format!("missing in {}", display(folder)), accepted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_the_text() {
        let lines = "a line\n\n  indented\né\n".repeat(PIECE / 8);
        let long = "é".repeat(20 * PIECE);
        for text in ["", "short", &lines, &long] {
            let pieces = pieces(text);
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| piece.len() <= 16 * PIECE + 2));
            assert!(pieces.len() <= 1 + text.len() / PIECE);
        }
        assert!(pieces(&lines).iter().all(|piece| !piece.starts_with([' ', '\n'])));
    }

    #[test]
    fn epochs_visit_every_window_once() {
        let mut order = Order::new(3, 10);
        let mut epoch = |n: u64| (0..10).map(|i| order.at(10 * n + i)).collect::<Vec<_>>();
        let (first, second, again) = (epoch(0), epoch(1), epoch(0));
        assert_eq!(first, again);
        assert_ne!(first, second);
        for mut windows in [first, second] {
            windows.sort_unstable();
            assert_eq!(windows, (0..10).collect::<Vec<_>>());
        }
    }

    #[test]
    fn held_out_windows_overlap_by_one_token() {
        let (train, held) = Corpus::from_ids((0..10).collect(), 3).unwrap().split(1).unwrap();
        assert_eq!((train.windows(), train.ids().len(), held.windows()), (2, 7, 1));
        assert_eq!((train.window(1), held.window(0)), (&[3, 4, 5, 6][..], &[6, 7, 8, 9][..]));
        for (ids, out) in [(10, 3), (10, 0), (4, 1)] {
            let corpus = Corpus::from_ids((0..ids).collect(), 3).unwrap();
            assert!(matches!(corpus.split(out), Err(Error::TooShort { .. })));
        }
        assert!(matches!(Corpus::from_ids(vec![1, 2, 3], 3), Err(Error::TooShort { .. })));
    }
}
