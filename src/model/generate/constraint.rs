//! What may restrict the tokens of a sequence.

use crate::{error::Result, model::tokenizer::text::Tokenizer};
use std::fmt::Debug;

/// A restriction that a caller chose, for any number of sequences.
pub(crate) trait ConstraintSource: Debug + Send + Sync {
    /// Returns the restriction of a sequence that follows a prompt. Tokens of `ends` end the text.
    fn begin(
        &self,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        ends: &[u32],
    ) -> Result<Box<dyn Constraint>>;
}

/// Which tokens may come next in a sequence.
pub(crate) trait Constraint: Send {
    /// Returns the tokens that may come next: bit `id % 32` of word `id / 32`. Tokens beyond the
    /// last word are not allowed.
    fn allowed(&self) -> &[u32];

    /// Appends a token that was chosen.
    ///
    /// # Errors
    /// For a token that is not allowed.
    fn append(&mut self, id: u32) -> Result<()>;

    /// Returns whether the text is complete and nothing can follow.
    fn is_complete(&self) -> bool;

    /// Returns how many of some tokens may come next, one after another. It may be too many.
    fn valid_prefix(&mut self, ids: &[u32]) -> Result<usize>;
}

/// Returns whether a token is among those of [`Constraint::allowed`].
pub(crate) fn is_allowed(allowed: &[u32], id: u32) -> bool {
    allowed.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}
