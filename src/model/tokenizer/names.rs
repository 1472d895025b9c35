//! Names of special tokens in what people write. A mark within a name keeps the tokenizer from
//! taking it for the token, and is removed before the text is split. So a name becomes the tokens
//! of its text, and a text without names is what it was.

use aho_corasick::AhoCorasick;
use std::{borrow::Cow, collections::HashSet};

/// Names that are no control tokens where people write them.
#[derive(Default)]
pub struct Names {
    /// Finds whole names, in letters of any case, as normalizers may change it.
    whole: Option<AhoCorasick>,
    /// The names, in lower case and in order; and those that are read from their ends.
    forward: Vec<String>,
    backward: Vec<String>,
    /// Bytes of the first character of each name that `whole` finds.
    first: Vec<usize>,
    /// Bytes of the longest name.
    longest: usize,
}

impl Names {
    /// Takes names of two characters at least: within one character there is no place for a mark.
    ///
    /// # Errors
    /// A message, if there are more names than can be looked for.
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut forward: Vec<String> = names
            .filter(|name| name.chars().nth(1).is_some())
            .map(str::to_ascii_lowercase)
            .collect();
        forward.sort_unstable();
        forward.dedup();
        let mut backward: Vec<String> =
            forward.iter().map(|name| name.chars().rev().collect()).collect();
        backward.sort_unstable();
        let first =
            forward.iter().map(|name| name.chars().next().map_or(0, char::len_utf8)).collect();
        let whole = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(&forward)
            .map_err(|error| error.to_string())?;
        let longest = forward.iter().map(String::len).max().unwrap_or(0);
        Ok(Self {
            whole: Some(whole).filter(|_| !forward.is_empty()),
            forward,
            backward,
            first,
            longest,
        })
    }

    /// Puts marks into all names in a text, except those in `kept`, and where a name may arise
    /// between its ends and what a template puts beside them.
    pub fn marked<'a>(&self, text: &'a str, mark: char, kept: &[&str]) -> Cow<'a, str> {
        // Overlapping names give up to a place for each of their bytes and each byte of the text: a
        // list of them could be long.
        let mut is_place = vec![false; text.len() + 1];
        self.ends(text).into_iter().for_each(|at| is_place[at] = true);
        for found in self.whole.iter().flat_map(|whole| whole.find_overlapping_iter(text)) {
            if !kept.contains(&&text[found.range()]) {
                is_place[found.start() + self.first[found.pattern().as_usize()]] = true;
            }
        }
        let count = is_place.iter().filter(|is_place| **is_place).count();
        if count == 0 {
            return text.into();
        }
        let mut marked = String::with_capacity(text.len() + count * mark.len_utf8());
        let mut done = 0;
        for at in (0..is_place.len()).filter(|&at| is_place[at]) {
            marked.push_str(&text[done..at]);
            marked.push(mark);
            done = at;
        }
        (marked + &text[done..]).into()
    }

    /// The ends of a text, without the white space there, where a part of a name is.
    fn ends(&self, text: &str) -> Vec<usize> {
        let words = text.trim();
        let begin = text.len() - text.trim_start().len();
        let last = words.char_indices().rev().map(|(at, c)| (c, &words[at..]));
        let first = words.char_indices().map(|(at, c)| (c, &words[..at + c.len_utf8()]));
        let mut places = Vec::new();
        if continues(&self.forward, self.longest, last, str::to_ascii_lowercase) {
            places.push(begin + words.len());
        }
        if continues(&self.backward, self.longest, first, |part| {
            part.chars().rev().collect::<String>().to_ascii_lowercase()
        }) {
            places.push(begin);
        }
        places
    }
}

/// Returns whether a name begins with one of these parts and goes on. Of each part, `read` gives
/// what is compared, which begins with the character beside it.
fn continues<'a>(
    names: &[String],
    longest: usize,
    parts: impl Iterator<Item = (char, &'a str)>,
    read: impl Fn(&str) -> String,
) -> bool {
    // The first name that is greater than a part begins with it, if any greater one does.
    let greater = |part: &str| names.get(names.partition_point(|name| name.as_str() <= part));
    parts.take_while(|(_, part)| part.len() < longest).any(|(c, part)| {
        let mut buffer = [0; 4];
        let begins = greater(&*c.to_ascii_lowercase().encode_utf8(&mut buffer))
            .is_some_and(|name| name.starts_with(c.to_ascii_lowercase()));
        let part = if begins { read(part) } else { return false };
        greater(&part).is_some_and(|name| name.starts_with(&part))
    })
}

/// Finds a character that is in none of the texts: a hieroglyph, which normalizers leave as it is.
pub fn unused_mark<'a>(texts: impl Iterator<Item = &'a str>) -> Option<char> {
    const MARKS: std::ops::RangeInclusive<char> = '\u{13000}'..='\u{1342e}';
    let used: HashSet<char> = texts.flat_map(str::chars).filter(|c| MARKS.contains(c)).collect();
    MARKS.rev().find(|mark| !used.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(text: &str) -> String {
        let names =
            Names::new(["<|im_end|>", "<s>", "</s>", "<|a|", "|>b", "</think>", "x"].into_iter())
                .unwrap();
        names.marked(text, '^', &["</think>"]).into_owned()
    }

    #[test]
    fn names_are_marked_within() {
        for (text, expected) in [
            ("a <|im_end|> b", "a <^|im_end|> b"),
            ("<s><s", "<^s><s^"),
            ("<|a|>b.", "<^|a|^>b."),
            ("<|IM_end|>.", "<^|IM_end|>."),
            ("</think>.", "</think>."),
            ("a < b, x > y", "a < b, x > y"),
            // At an end, what may become a name with what comes there.
            (" a <|im_  ", " a <|im_^  "),
            (" end|> a", " ^end|> a"),
            ("", ""),
        ] {
            assert_eq!(marked(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_mark_is_in_no_text() {
        assert_eq!(unused_mark(["a"].into_iter()), Some('\u{1342e}'));
        assert_eq!(unused_mark(["a", "\u{1342e}"].into_iter()), Some('\u{1342d}'));
        let all: String = ('\u{13000}'..='\u{1342e}').collect();
        assert_eq!(unused_mark([all.as_str()].into_iter()), None);
    }
}
