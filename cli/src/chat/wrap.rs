//! Text that arrives in parts, wrapped between words.

use crate::style::without_controls;
use unicode_width::UnicodeWidthChar as _;

/// Columns from one tab stop to the next.
const TAB: usize = 8;

/// Wraps text at a width. A word is held back until it is complete.
#[derive(Debug, Default)]
pub struct Wrap {
    /// Columns of a line; none for text that is not wrapped.
    width: Option<usize>,
    /// Columns of the line that are filled.
    column: usize,
    /// Spaces after the last word.
    spaces: String,
    word: String,
    /// Whether the beginning of the word is shown already.
    begun: bool,
}

impl Wrap {
    /// Wraps at `width` columns.
    pub fn new(width: Option<usize>) -> Self {
        Self { width, ..Self::default() }
    }

    /// Takes more text, and returns what can be shown, without control characters.
    pub fn push(&mut self, text: &str) -> String {
        if self.width.is_none() {
            return text.to_owned();
        }
        let mut shown = String::new();
        for c in without_controls(text).chars() {
            match c {
                '\n' => {
                    self.end_word(&mut shown);
                    self.spaces.clear();
                    self.column = 0;
                    shown.push('\n');
                }
                ' ' | '\t' => {
                    self.end_word(&mut shown);
                    self.spaces.push(c);
                }
                // Ideographs, between which a line may end.
                c if c.width() == Some(2) => {
                    self.end_word(&mut shown);
                    self.word.push(c);
                    self.end_word(&mut shown);
                }
                c => {
                    self.word.push(c);
                    // A word that fills a line is shown before its end.
                    if columns(&self.word) >= self.width.unwrap_or(usize::MAX) {
                        self.show_word(&mut shown);
                        self.begun = true;
                    }
                }
            }
        }
        shown
    }

    /// Returns what was held back.
    pub fn finish(&mut self) -> String {
        let mut shown = String::new();
        self.end_word(&mut shown);
        shown
    }

    fn end_word(&mut self, shown: &mut String) {
        self.show_word(shown);
        self.begun = false;
    }

    fn show_word(&mut self, shown: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let spaces = columns(&self.spaces);
        let word = columns(&self.word);
        let limit = self.width.unwrap_or(usize::MAX).max(1);
        if !self.begun && self.column > 0 && self.column + spaces + word > limit {
            shown.push('\n');
            self.column = 0;
        } else {
            shown.push_str(&self.spaces);
            self.column += spaces;
        }
        shown.push_str(&self.word);
        // The terminal breaks a word that is longer than a line.
        self.column = (self.column + word).saturating_sub(1) % limit + 1;
        self.spaces.clear();
        self.word.clear();
    }
}

fn columns(text: &str) -> usize {
    text.chars().map(|c| if c == '\t' { TAB } else { c.width().unwrap_or(0) }).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(width: usize, parts: &[&str]) -> String {
        let mut wrap = Wrap::new(Some(width));
        let text: String = parts.iter().map(|part| wrap.push(part)).collect();
        text + &wrap.finish()
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped(10, &["one two three four"]), "one two\nthree four");
        assert_eq!(wrapped(10, &["one t", "wo thr", "ee ", "four"]), "one two\nthree four");
        assert_eq!(wrapped(10, &["one\n\n  two three"]), "one\n\n  two\nthree");
        assert_eq!(wrapped(4, &["longest word"]), "longest\nword");
    }

    #[test]
    fn long_words_are_shown_as_they_come() {
        let mut wrap = Wrap::new(Some(4));
        assert_eq!((wrap.push("abc").as_str(), wrap.push("de").as_str()), ("", "abcd"));
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(wrapped(5, &["漢字漢字"]), "漢字\n漢字");
    }

    #[test]
    fn control_characters_are_left_out() {
        assert_eq!(wrapped(10, &["a\u{1b}[2Jb\rc"]), "a[2Jbc");
        assert_eq!(Wrap::new(None).push("a\u{1b}b  c "), "a\u{1b}b  c ");
    }
}
