//! The text of tokens as they come, and what ends it.

use super::tokenizer::stream::TextStream;
use crate::error::Result;
use std::mem::{replace, take};

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// With an end-of-text token.
    EndOfText,
    /// At one of [`GenerateOptions::stop`](super::GenerateOptions::stop).
    StopString,
    /// After [`GenerateOptions::max_tokens`](super::GenerateOptions::max_tokens).
    MaxTokens,
    /// The model's context is full.
    Context,
}

/// Writes the text of a sequence.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    /// None for a model without a tokenizer.
    pub text: Option<TextStream>,
    pub stops: StopStrings,
}

impl Writer {
    /// What is written follows a prompt: in SentencePiece, a space at its beginning is part of the text only there.
    pub fn follow(&mut self, prompt: &[u32]) {
        if let Some(text) = &mut self.text {
            text.follow(prompt);
        }
    }

    /// The text that a token settles; all that is left, if `stop` says that it is the last. A stop string that it completes sets `stop`.
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

/// Finds, of some strings, the one that is complete first in a text that comes in pieces. What may be the beginning of one is held back.
#[derive(Clone, Debug, Default)]
pub(super) struct StopStrings {
    strings: Vec<String>,
    held: String,
}

impl StopStrings {
    pub fn new(strings: &[String]) -> Self {
        Self { strings: strings.to_vec(), held: String::new() }
    }

    /// Adds a piece. Gives the text that is settled, and whether a string was found: the text then ends before it.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.held += piece;
        // Of several, the one that is complete first, as if the text came letter by letter.
        let found = self.strings.iter().filter_map(|string| self.held.find(string).map(|at| (at + string.len(), at)));
        if let Some((_, at)) = found.min() {
            self.held.truncate(at);
            return (take(&mut self.held), true);
        }
        let begun = self.strings.iter().map(|string| overlap(&self.held, string)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - begun);
        (replace(&mut self.held, rest), false)
    }

    /// Ends the text: what was held back was no such string.
    pub fn finish(&mut self) -> String {
        take(&mut self.held)
    }
}

/// How many bytes at the end of `text` are the beginning of `string`.
fn overlap(text: &str, string: &str) -> usize {
    let begins = |length: &usize| string.get(..*length).is_some_and(|beginning| text.ends_with(beginning));
    (1..string.len()).rev().find(begins).unwrap_or(0)
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
            let strings: Vec<String> = strings.iter().map(|&string| string.to_owned()).collect();
            for size in 1..=text.chars().count() {
                let (mut stops, mut got, mut stopped) = (StopStrings::new(&strings), String::new(), false);
                for piece in text.chars().collect::<Vec<_>>().chunks(size) {
                    let (settled, hit) = stops.push(&piece.iter().collect::<String>());
                    got += &settled;
                    stopped = hit;
                    if hit {
                        break;
                    }
                }
                got += &stops.finish();
                assert_eq!((got.as_str(), stopped), (expected, found), "{strings:?} in pieces of {size}");
            }
        }
    }
}
