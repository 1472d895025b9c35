//! Decoding tokens one by one.

use super::text::Tokenizer;
use crate::error::Result;

/// Turns tokens into text one by one. A character may be spread over several tokens, and a token's
/// text may depend on the one before it, so text is held back until it is complete. Joined, the
/// pieces are what [`Tokenizer::decode`] gives for all tokens, except for some sequences that are
/// not UTF-8: a later SentencePiece token can change how earlier bytes decode.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    /// The tokens of the last piece, then those held back.
    ids: Vec<u32>,
    /// How many of `ids` belong to the last piece.
    emitted: usize,
    /// The text of the last piece's tokens, decoded alone.
    prefix: String,
}

/// Tokens of an incomplete character that may follow each other, at most: one for each of its bytes
/// but the last.
const CHARACTER: usize = 3;
/// Tokens that are held back at most: a text may end with characters U+FFFD of its own, of three
/// bytes each.
const HELD: usize = 64;
/// Tokens of a prompt on which the text after it may depend.
const CONTEXT: usize = 8;

impl Tokenizer {
    /// Returns a decoder that takes tokens one by one.
    pub fn stream(&self) -> TextStream {
        TextStream::new(self.clone())
    }
}

impl TextStream {
    fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, ids: Vec::new(), emitted: 0, prefix: String::new() }
    }

    /// The text to come follows `ids`, a prompt that is not decoded again: its last tokens decide
    /// whether a space comes first. A special token at its end begins a new text.
    pub fn follow(&mut self, ids: &[u32]) {
        let last = ids
            .iter()
            .rev()
            .take(CONTEXT)
            .take_while(|&&id| !self.tokenizer.is_special(id))
            .count();
        let last = ids[ids.len() - last..].to_vec();
        // An embedding may have more rows than there are tokens.
        if let Ok(prefix) = self.tokenizer.decode(&last) {
            (self.emitted, self.ids, self.prefix) = (last.len(), last, prefix);
        }
    }

    /// Adds a token and returns the text that it completes: often empty, always so for a special
    /// token.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) for an id that is not a token; the stream then
    /// continues as if it had not been given.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        let held = self.ids.len();
        self.ids.push(id);
        let text = self.tokenizer.decode(&self.ids).inspect_err(|_| self.ids.truncate(held))?;
        // An incomplete character at the end decodes to U+FFFD.
        if text.len() > self.prefix.len() && !text.ends_with(char::REPLACEMENT_CHARACTER) {
            return self.settle(self.ids.len(), &text);
        }
        if self.ids.len() - self.emitted <= HELD {
            return Ok(String::new());
        }
        // No character takes this many: what is held is not UTF-8, but for what may be the beginning of a
        // character.
        let settled = self.ids.len() - CHARACTER;
        let text = self.tokenizer.decode(&self.ids[..settled])?;
        self.settle(settled, &text)
    }

    /// Gives the text of the first `count` tokens, `text`, but for what was given before.
    fn settle(&mut self, count: usize, text: &str) -> Result<String> {
        let piece = match text.strip_prefix(self.prefix.as_str()) {
            Some(rest) => rest.to_owned(),
            // Invalid bytes changed how the last piece's tokens decode.
            None => self.tokenizer.decode(&self.ids[self.emitted..count])?,
        };
        // The piece's tokens are kept, as the next one's text may depend on them.
        self.ids.drain(..self.emitted);
        self.emitted = count - self.emitted;
        self.prefix = self.tokenizer.decode(&self.ids[..self.emitted])?;
        Ok(piece)
    }

    /// Ends the text and returns what is still held back; incomplete characters become U+FFFD.
    /// Another text may then follow.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn finish(&mut self) -> Result<String> {
        let text = self.tokenizer.decode(&self.ids)?;
        let rest = self.settle(self.ids.len(), &text)?;
        *self = Self::new(self.tokenizer.clone());
        Ok(rest)
    }
}
