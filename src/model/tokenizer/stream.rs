//! Text as tokens come.

use super::Tokenizer;
use crate::Result;

/// Turns tokens into text one by one. A character may be spread over several tokens, and a token's text may depend on the one before it, so
/// text is held back until it is complete; together, the pieces are what [`Tokenizer::decode`] gives for all tokens. (Not always, if they are
/// not UTF-8: SentencePiece then takes back whole characters.)
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    /// The tokens of the last piece, then those that are held back.
    ids: Vec<u32>,
    /// How many of `ids` belong to the last piece.
    given: usize,
    /// The text of these, on their own.
    prefix: String,
}

impl TextStream {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, ids: Vec::new(), given: 0, prefix: String::new() }
    }

    /// The text that this token completes; often empty. Special tokens have none.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) for an id that is no token, which is then left out.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        let held = self.ids.len();
        self.ids.push(id);
        let text = self.tokenizer.decode(&self.ids).inspect_err(|_| self.ids.truncate(held))?;
        // An incomplete character at the end reads as U+FFFD.
        if text.ends_with(char::REPLACEMENT_CHARACTER) || text.len() <= self.prefix.len() {
            return Ok(String::new());
        }
        let piece = self.rest(&text)?;
        // The next token's text may depend on these.
        self.ids.drain(..self.given);
        self.given = self.ids.len();
        self.prefix = self.tokenizer.decode(&self.ids)?;
        Ok(piece)
    }

    /// What is still held back; incomplete characters become U+FFFD. Another text may follow.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn finish(&mut self) -> Result<String> {
        let text = self.tokenizer.decode(&self.ids)?;
        let rest = self.rest(&text)?;
        *self = Self::new(self.tokenizer.clone());
        Ok(rest)
    }

    /// What follows the last piece in the text of `ids`.
    fn rest(&self, text: &str) -> Result<String> {
        match text.strip_prefix(self.prefix.as_str()) {
            Some(rest) => Ok(rest.to_owned()),
            // A byte that fits to nothing before it has changed how that reads.
            None => self.tokenizer.decode(&self.ids[self.given..]),
        }
    }
}
