//! Decoding tokens one by one.

use super::text::Tokenizer;
use crate::error::Result;

/// Turns tokens into text one by one. A character may be spread over several tokens, and a token's text may depend on the one before it, so
/// text is held back until it is complete. Joined, the pieces are what [`Tokenizer::decode`] gives for all tokens, except for some
/// sequences that are not UTF-8: a later SentencePiece token can change how earlier bytes decode.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    /// The tokens of the last piece, then those held back.
    ids: Vec<u32>,
    /// How many of `ids` belong to the last piece.
    given: usize,
    /// The text of the last piece's tokens, decoded alone.
    prefix: String,
}

impl Tokenizer {
    /// A decoder that takes tokens one by one.
    pub fn stream(&self) -> TextStream {
        TextStream::new(self.clone())
    }
}

impl TextStream {
    fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, ids: Vec::new(), given: 0, prefix: String::new() }
    }

    /// Adds a token and returns the text that it completes: often empty, always so for a special token.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) for an id that is not a token; the stream then continues as if it had not been given.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        let held = self.ids.len();
        self.ids.push(id);
        let text = self.tokenizer.decode(&self.ids).inspect_err(|_| self.ids.truncate(held))?;
        // An incomplete character at the end decodes to U+FFFD.
        if text.ends_with(char::REPLACEMENT_CHARACTER) || text.len() <= self.prefix.len() {
            return Ok(String::new());
        }
        let piece = self.rest(&text)?;
        // These tokens are kept, as the next one's text may depend on them.
        self.ids.drain(..self.given);
        self.given = self.ids.len();
        self.prefix = self.tokenizer.decode(&self.ids)?;
        Ok(piece)
    }

    /// Ends the text and returns what is still held back; incomplete characters become U+FFFD. Another text may then follow.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn finish(&mut self) -> Result<String> {
        let text = self.tokenizer.decode(&self.ids)?;
        let rest = self.rest(&text)?;
        *self = Self::new(self.tokenizer.clone());
        Ok(rest)
    }

    /// The part of `text`, the text of `ids`, after the last piece.
    fn rest(&self, text: &str) -> Result<String> {
        match text.strip_prefix(self.prefix.as_str()) {
            Some(rest) => Ok(rest.to_owned()),
            // Invalid bytes changed how the last piece's tokens decode.
            None => self.tokenizer.decode(&self.ids[self.given..]),
        }
    }
}
