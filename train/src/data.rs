//! Text and conversations as windows of tokens.

use crate::{
    chat::Conversation,
    error::{Error, Result},
    files::{FileKind, Line, contents, data, files, line},
    random::Random,
};
use bitnet_wgpu::{
    Error as LibraryError, formats::ModelConfig, internals::files::display, model::Tokenizer,
};
use rayon::prelude::*;
use std::path::{Path, PathBuf};

/// The most windows: their order has 32-bit numbers.
const MOST_WINDOWS: usize = u32::MAX as usize;

/// Bytes of a text that are encoded at once. Encoding takes up to 200 times as much memory.
const PIECE: usize = 64 << 10;

/// Lines of JSON Lines that are encoded side by side.
const LINES: usize = 256;

/// Text and conversations as windows of tokens. Documents are joined and cut into windows; a
/// conversation is a window.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// Documents, one after another, then conversations.
    ids: Vec<u32>,
    /// Tokens of a window, without the one that is predicted last.
    context: usize,
    /// Windows of documents.
    windows: usize,
    chats: Vec<Place>,
    /// Whether a token of a conversation is learned, from the first conversation on.
    scored: Vec<bool>,
    report: ChatReport,
}

/// Where a conversation is among the tokens.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    len: usize,
}

/// What became of the conversations of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChatReport {
    /// Number of conversations.
    pub conversations: usize,
    /// Number of them that were longer than a window, and lost their end.
    pub cut: usize,
    /// Number of them that were left out, since no answer begins within a window.
    pub left_out: usize,
}

/// A line, encoded.
enum Encoded {
    Text(Vec<u32>),
    Chat(Conversation),
}

impl Corpus {
    /// Reads text files (`.txt`: a document each) and JSON Lines (`.jsonl`: a document per line, as
    /// `{"text": ".."}`, or a conversation, as `{"messages": [..]}`). Of folders, it reads all such
    /// files, in the order of their paths. A document is the tokenizer's BOS if it has one that is
    /// not `end`, the text, and `end`. Names of special tokens in the text become those tokens. Long
    /// texts are encoded in pieces that end with a line. A conversation is what the chat template
    /// writes; only the assistant's answers are learned. One that is longer than `context + 1`
    /// tokens is cut.
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
        let (mut ids, mut chats) = (Vec::new(), Vec::new());
        let mut add = |encoded: Encoded| match encoded {
            Encoded::Text(text) if text.is_empty() => {}
            Encoded::Text(text) => {
                ids.extend(tokenizer.bos().filter(|&bos| bos != end));
                ids.extend(text);
                ids.push(end);
            }
            Encoded::Chat(chat) => chats.push(chat),
        };
        for (file, kind) in files(paths)? {
            let text = contents(&file)?;
            if kind == FileKind::Text {
                let encoded = encode(tokenizer, &text);
                add(Encoded::Text(encoded.map_err(|error| data(&file, None, error.to_string()))?));
                continue;
            }
            let lines: Vec<(usize, &str)> =
                (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).collect();
            for lines in lines.chunks(LINES) {
                let encoded: Vec<Result<Encoded>> = lines
                    .par_iter()
                    .map(|&(number, line)| {
                        encode_line(tokenizer, end, line)
                            .map_err(|problem| data(&file, Some(number), problem))
                    })
                    .collect();
                encoded.into_iter().try_for_each(|encoded| encoded.map(&mut add))?;
            }
        }
        Self::new(ids, chats, context)
    }

    /// Cuts tokens into windows of `context`, each of which ends with the first token of the next.
    ///
    /// # Errors
    /// [`Error::TooShort`] for fewer tokens than one window has; [`Error::Setting`] for more than
    /// 2^32 - 1 windows.
    pub fn from_ids(ids: Vec<u32>, context: usize) -> Result<Self> {
        Self::new(ids, Vec::new(), context)
    }

    fn new(mut ids: Vec<u32>, chats: Vec<Conversation>, context: usize) -> Result<Self> {
        let context = context.max(1);
        let windows = ids.len().saturating_sub(1) / context;
        if windows + chats.len() > MOST_WINDOWS {
            let accepted = format!("at most {MOST_WINDOWS} are supported: take a longer context");
            return Err(Error::setting("the number of windows", windows + chats.len(), accepted));
        }
        if windows == 0 && (chats.is_empty() || !ids.is_empty()) {
            let what = format!("a window of {context} and the token after it");
            let needed = context.saturating_add(1);
            return Err(Error::TooShort { tokens: ids.len(), needed, what });
        }
        let (mut places, mut scored) = (Vec::new(), Vec::new());
        let mut report = ChatReport { conversations: chats.len(), ..ChatReport::default() };
        for mut chat in chats {
            if chat.ids.len() > context.saturating_add(1) {
                chat.ids.truncate(context + 1);
                chat.scored.truncate(context + 1);
                match chat.scored.contains(&true) {
                    true => report.cut += 1,
                    false => report.left_out += 1,
                }
            }
            if chat.scored.contains(&true) {
                places.push(Place { start: ids.len(), len: chat.ids.len() });
                ids.extend(chat.ids);
                scored.extend(chat.scored);
            }
        }
        if windows + places.len() == 0 {
            let accepted = "a longer one is needed: no answer begins within it";
            return Err(Error::setting("the context", context, accepted));
        }
        Ok(Self { ids, context, windows, chats: places, scored, report })
    }

    /// Takes the last windows away, as text that is not trained on. Conversations are the last ones.
    ///
    /// # Errors
    /// [`Error::TooShort`] if none would be left on either side; [`Error::Setting`] with
    /// conversations.
    pub fn split(mut self, held_out: usize) -> Result<(Self, Self)> {
        let held = held_out.max(1);
        if held_out == 0 || held_out >= self.windows() {
            if !self.chats.is_empty() {
                let accepted = format!("1 to {} are supported", self.windows() - 1);
                return Err(Error::setting("the number of held-out windows", held_out, accepted));
            }
            let needed = held.saturating_add(1).saturating_mul(self.context).saturating_add(1);
            let what = format!("{held} windows of {} are held out", self.context);
            return Err(Error::TooShort { tokens: self.ids.len(), needed, what });
        }
        let chats = self.chats.len().saturating_sub(held);
        let windows = self.windows - held.saturating_sub(self.chats.len());
        let from_chats = self.ids.len() - self.scored.len();
        let cut = match self.chats.get(chats) {
            Some(place) => place.start,
            None => from_chats,
        };
        // Windows of documents share a token.
        let (rest, scored) = (self.ids.split_off(cut), self.scored.split_off(cut - from_chats));
        let mut held = Self {
            ids: Vec::new(),
            context: self.context,
            windows: 0,
            chats: Vec::new(),
            scored,
            report: ChatReport::default(),
        };
        if windows < self.windows {
            held.ids = self.ids[windows * self.context..].to_vec();
            held.windows = self.windows - windows;
            self.ids.truncate(windows * self.context + 1);
        }
        let moved = held.ids.len();
        let place = |place: Place| Place { start: place.start - cut + moved, ..place };
        held.chats = self.chats.split_off(chats).into_iter().map(place).collect();
        held.ids.extend(rest);
        self.windows = windows;
        Ok((self, held))
    }

    /// Returns the number of windows.
    pub fn windows(&self) -> usize {
        self.windows + self.chats.len()
    }

    /// Returns what became of conversations.
    pub fn chat_report(&self) -> ChatReport {
        self.report
    }

    /// Returns the number of tokens that are predicted and learned, in all windows.
    pub fn learned(&self) -> usize {
        let answers = self.scored.iter().filter(|&&scored| scored).count();
        self.windows * self.context + answers
    }

    /// Returns all tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns a window's tokens and the one after them: `context + 1` ids of documents, or a
    /// conversation of at most as many.
    ///
    /// # Panics
    /// If there are not more than `index` windows.
    pub fn window(&self, index: usize) -> &[u32] {
        match index.checked_sub(self.windows) {
            None => &self.ids[index * self.context..][..self.context + 1],
            Some(chat) => {
                let Place { start, len } = self.chats[chat];
                &self.ids[start..][..len]
            }
        }
    }

    /// Returns whether each token of a window is learned, or none where all are. The first token of
    /// a window is not predicted.
    pub fn scored(&self, index: usize) -> Option<&[bool]> {
        let Place { start, len } = self.chats[index.checked_sub(self.windows)?];
        Some(&self.scored[start - (self.ids.len() - self.scored.len())..][..len])
    }

    /// Returns the tokens of a window without the last one, or of the longest one.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Returns a number that differs, but for chance, for other tokens or windows (FNV-1a).
    pub fn fingerprint(&self) -> u64 {
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x100_0000_01b3);
        let start = mix(0xcbf2_9ce4_8422_2325, self.context as u64);
        let hash = self.ids.iter().fold(start, |hash, &id| mix(hash, id.into()));
        let hash = self.chats.iter().fold(hash, |hash, place| mix(hash, place.start as u64));
        self.scored.iter().fold(hash, |hash, &scored| mix(hash, scored.into()))
    }
}

fn encode_line(tokenizer: &Tokenizer, end: u32, text: &str) -> Result<Encoded, String> {
    match line(text)? {
        Line::Text(text) => {
            let encoded = encode(tokenizer, &text).map_err(|error| error.to_string())?;
            Ok(Encoded::Text(encoded))
        }
        Line::Chat(turns) => Ok(Encoded::Chat(turns.encode(tokenizer, end)?)),
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

/// Checks that a model has these tokens.
///
/// # Errors
/// [`Error::Setting`] for the first that it does not have.
pub(crate) fn check_ids(ids: &[u32], config: &ModelConfig) -> Result<()> {
    match ids.iter().find(|&&id| id as usize >= config.vocab) {
        Some(id) => {
            let accepted = format!("ids below the vocab_size of {} are needed", config.vocab);
            Err(Error::setting("a token", id, accepted))
        }
        None => Ok(()),
    }
}

/// Returns the token that ends documents: the first of config.json, or else the tokenizer's.
///
/// # Errors
/// [`Error::Setting`] if there is none, or the tokenizer has more tokens than the model.
pub fn end_of_text(tokenizer: &Tokenizer, config: &ModelConfig, folder: &Path) -> Result<u32> {
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
