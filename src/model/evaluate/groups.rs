//! Groups of texts of like lengths, which are computed side by side.

use crate::{
    element::Element,
    error::{Error, Result},
    limits::groups::MOST_POSITIONS,
    model::{engine::interface::SessionOptions, session::sequences::Session},
};
use std::cmp::Reverse;

/// Texts that are not computed yet.
pub(crate) struct Groups {
    lengths: Vec<usize>,
    /// Indices of the texts, the longest first.
    left: Vec<usize>,
    most_texts: usize,
}

impl Groups {
    /// `lengths` in tokens.
    pub fn new(lengths: Vec<usize>, most_texts: usize) -> Self {
        let mut left: Vec<usize> = (0..lengths.len()).collect();
        left.sort_by_key(|&n| (Reverse(lengths[n]), n));
        Self { lengths, left, most_texts }
    }

    /// Takes the next group, the longest text first. Returns a session with a sequence for each of
    /// its texts, and their indices.
    pub fn next(
        &mut self,
        sessions: &impl Fn(SessionOptions) -> Result<Session>,
    ) -> Result<Option<(Session, Vec<usize>)>> {
        let Some(&longest) = self.left.first() else { return Ok(None) };
        let capacity = self.lengths[longest];
        let mut count = self.left.len().min(self.most_texts).min(MOST_POSITIONS / capacity).max(1);
        loop {
            match sessions(SessionOptions::new(count, capacity).kv_type(Element::F32)) {
                // As many as a limited memory has room for.
                Err(Error::MemoryLimit { .. }) if count > 1 => count /= 2,
                session => {
                    return session
                        .map(|session| Some((session, self.left.drain(..count).collect())));
                }
            }
        }
    }
}

/// Returns which of some texts have tokens behind the first `done`, and how many the one that ends
/// first has. None where all have ended.
pub(crate) fn unfinished(texts: &[&[u32]], done: usize) -> Option<(Vec<usize>, usize)> {
    let unfinished: Vec<usize> = (0..texts.len()).filter(|&n| texts[n].len() > done).collect();
    let shortest = unfinished.iter().map(|&n| texts[n].len() - done).min()?;
    Some((unfinished, shortest))
}
