//! Strings that end a text.

use std::mem::{replace, take};

/// Finds the first of some strings in a text that comes in pieces. What may be the beginning of one is held back.
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
        if let Some(at) = self.strings.iter().filter_map(|string| self.held.find(string)).min() {
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
