//! What is checked of tokens before they are appended.

use crate::error::{Error, Result};

/// Checks that these tokens are in the vocabulary.
pub(super) fn check_vocabulary(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().find(|&&id| id as usize >= vocab) {
        Some(id) => Err(Error::Invalid {
            op: "session",
            what: format!("token {id}; the vocabulary has {vocab}"),
        }),
        None => Ok(()),
    }
}

/// Checks that these tokens may follow the earlier ones.
pub(super) fn check_appended(
    before: usize,
    ids: &[u32],
    vocab: usize,
    capacity: usize,
) -> Result<()> {
    if ids.is_empty() {
        return Err(Error::Invalid {
            op: "session",
            what: "no tokens; at least BOS is needed".into(),
        });
    }
    check_vocabulary(ids, vocab)?;
    let needed = before + ids.len();
    if needed > capacity { Err(Error::Context { needed, capacity }) } else { Ok(()) }
}

/// Checks that these tokens may be a whole sequence.
pub(crate) fn check_tokens(ids: &[u32], vocab: usize, capacity: usize) -> Result<()> {
    check_appended(0, ids, vocab, capacity)
}
