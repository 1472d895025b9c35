//! The text of tokens as they come, and what ends it.

use crate::{
    error::Result, limits::generation::LONGEST_STOP, model::tokenizer::stream::TextStream,
};
use std::{
    fmt,
    mem::{replace, take},
    sync::Arc,
};

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// With an end-of-text token.
    EndOfText,
    /// At one of [`GenerateOptions::stop`](crate::model::GenerateOptions::stop).
    StopString,
    /// After [`GenerateOptions::max_tokens`](crate::model::GenerateOptions::max_tokens).
    MaxTokens,
    /// The model's context is full.
    Context,
}

/// The reason in words with underscores, as in `max_tokens`.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::EndOfText => "end_of_text",
            Self::StopString => "stop_string",
            Self::MaxTokens => "max_tokens",
            Self::Context => "context",
        })
    }
}

/// Writes the text of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    /// None for a model without a tokenizer.
    pub text: Option<TextStream>,
    pub stops: StopStrings,
}

impl Writer {
    /// What is written follows a prompt: in SentencePiece, a space at its beginning is part of the
    /// text only there.
    pub fn follow(&mut self, prompt: &[u32]) {
        if let Some(text) = &mut self.text {
            text.follow(prompt);
        }
    }

    /// The text that a token settles; all that is left, if `stop` says that it is the last. A stop
    /// string that it completes sets `stop`.
    pub fn push(&mut self, id: u32, stop: &mut Option<Stop>) -> Result<String> {
        let Some(stream) = &mut self.text else { return Ok(String::new()) };
        // An embedding may have more rows than there are tokens.
        let mut text = stream.push(id).unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.into());
        if stop.is_some() {
            text += &stream.finish()?;
        }
        let (mut settled, found) = self.stops.push(&text);
        if found {
            *stop = Some(Stop::StopString);
        } else if stop.is_some() {
            settled += &self.stops.finish();
        }
        Ok(settled)
    }
}

/// Finds the stop string that is complete first in a text that comes in pieces. Text that may be
/// the beginning of one is held back.
///
/// The work for a piece depends on its length and on the number of strings, never on the strings'
/// lengths (Knuth, Morris, Pratt 1977).
#[derive(Clone, Debug, Default)]
pub(crate) struct StopStrings {
    strings: Vec<Matcher>,
    held: String,
}

impl StopStrings {
    pub fn new(strings: &Arc<[String]>) -> Self {
        let indices = (0..strings.len()).filter(|&index| !strings[index].is_empty());
        Self {
            strings: indices.map(|index| Matcher::new(strings.clone(), index)).collect(),
            held: String::new(),
        }
    }

    /// Adds a piece. Returns the text that is settled, and whether a string was found: the text
    /// then ends before it.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        let before = self.held.len();
        self.held += piece;
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            // Of several that end here, the longest: the text ends before it.
            if let Some(length) =
                self.strings.iter_mut().filter_map(|string| string.push(byte)).max()
            {
                self.held.truncate(before + at + 1 - length);
                self.strings.iter_mut().for_each(|string| string.matched = 0);
                return (take(&mut self.held), true);
            }
        }
        let begun = self.strings.iter().map(|string| string.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - begun);
        (replace(&mut self.held, rest), false)
    }

    /// Ends the text. Returns what was held back.
    pub fn finish(&mut self) -> String {
        take(&mut self.held)
    }
}

const _: () = assert!(LONGEST_STOP <= u16::MAX as usize, "lengths of beginnings are stored as u16");

/// Follows one string through a text.
#[derive(Clone, Debug)]
struct Matcher {
    /// All strings; they are shared by the choices of a request.
    strings: Arc<[String]>,
    index: usize,
    /// For each beginning of the string: the length of the longest shorter beginning with which it
    /// ends.
    fallback: Vec<u16>,
    /// Length of the longest beginning with which the text ends.
    matched: usize,
    #[cfg(test)]
    steps: usize,
}

impl Matcher {
    fn new(strings: Arc<[String]>, index: usize) -> Self {
        let mut matcher = Self {
            strings,
            index,
            fallback: vec![0],
            matched: 0,
            #[cfg(test)]
            steps: 0,
        };
        // Each beginning is found in the string itself.
        for at in 1..matcher.string().len() {
            let byte = matcher.string()[at];
            matcher.push(byte);
            matcher.fallback.push(matcher.matched as u16);
        }
        matcher.matched = 0;
        matcher
    }

    fn string(&self) -> &[u8] {
        self.strings[self.index].as_bytes()
    }

    /// Adds a byte of the text. Returns the string's length if it is complete.
    fn push(&mut self, byte: u8) -> Option<usize> {
        while self.matched > 0 && self.string()[self.matched] != byte {
            self.matched = usize::from(self.fallback[self.matched - 1]);
            #[cfg(test)]
            (self.steps += 1);
        }
        self.matched += usize::from(self.string()[self.matched] == byte);
        #[cfg(test)]
        (self.steps += 1);
        (self.matched == self.string().len()).then(|| take(&mut self.matched))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_found_however_the_text_is_cut() {
        let text = "aab é\nUser: aabc";
        let cases = [
            (&["\nUser:"][..], "aab é", true),
            (&["abc"], "aab é\nUser: a", true),
            (&["User", "\nU"], "aab é", true),
            (&["é"], "aab ", true),
            (&["a"], "", true),
            (&["aab é\nU", "b é"], "aa", true),
            (&["aabd", "cc"], text, false),
            (&[], text, false),
        ];
        for (strings, expected, found) in cases {
            let strings: Arc<[String]> = strings.iter().map(|&string| string.to_owned()).collect();
            for size in 1..=text.chars().count() {
                let (mut stops, mut got, mut stopped) =
                    (StopStrings::new(&strings), String::new(), false);
                for piece in text.chars().collect::<Vec<_>>().chunks(size) {
                    let (settled, hit) = stops.push(&piece.iter().collect::<String>());
                    got += &settled;
                    stopped = hit;
                    if hit {
                        break;
                    }
                }
                got += &stops.finish();
                assert_eq!(
                    (got.as_str(), stopped),
                    (expected, found),
                    "{strings:?} in pieces of {size}"
                );
            }
        }
    }
    #[test]
    fn work_is_bounded_by_the_text() {
        // Strings that match almost to their ends, and then not.
        let strings: Arc<[String]> =
            (0..16).map(|n| "a".repeat(LONGEST_STOP - 1 - n) + "b").collect();
        let mut stops = StopStrings::new(&strings);
        let before: usize = stops.strings.iter().map(|string| string.steps).sum();
        let mut text = 0;
        for piece in ["a", "aaaa", "aac", "a"].iter().cycle().take(4000) {
            assert!(!stops.push(piece).1);
            text += piece.len();
        }
        let steps = stops.strings.iter().map(|string| string.steps).sum::<usize>() - before;
        assert!(steps <= 2 * text * strings.len(), "{steps} steps for {text} bytes");
    }

    #[test]
    fn choices_share_stop_strings() {
        let strings: Arc<[String]> = Arc::from(["\n\n".to_owned()]);
        let choices: Vec<StopStrings> = (0..64).map(|_| StopStrings::new(&strings)).collect();
        assert_eq!(Arc::strong_count(&strings), 1 + choices.len());
    }

    #[test]
    fn strings_are_those_of_a_plain_search() {
        let mut random = 1u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % n
        };
        for _ in 0..2000 {
            let mut word = |most: u64| {
                (0..1 + below(most)).map(|_| ['a', 'b', 'é'][below(3) as usize]).collect::<String>()
            };
            let (strings, text): (Arc<[String]>, _) = ((0..3).map(|_| word(6)).collect(), word(40));
            let ends = strings
                .iter()
                .filter_map(|string| text.find(string.as_str()).map(|at| (at + string.len(), at)));
            let expected =
                ends.min().map_or((text.clone(), false), |(_, at)| (text[..at].to_owned(), true));
            let (mut stops, mut got) = (StopStrings::new(&strings), (String::new(), false));
            for piece in text.split_inclusive('b') {
                let (settled, found) = stops.push(piece);
                got = (got.0 + &settled, found);
                if found {
                    break;
                }
            }
            got.0 += &stops.finish();
            assert_eq!(got, expected, "{strings:?} in {text:?}");
        }
    }
}
