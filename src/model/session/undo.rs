//! Work on sequences that may fail.

use crate::model::engine::interface::EngineSession;

/// Work on sequences: dropped before it is done, by an error or with its future, it gives every
/// sequence the length that it had before.
pub(super) struct Undo<'a> {
    pub state: &'a mut dyn EngineSession,
    pub before: Vec<usize>,
}

impl Undo<'_> {
    pub fn keep(mut self) {
        self.before.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.before
            .iter()
            .enumerate()
            .for_each(|(sequence, &tokens)| self.state.truncate(sequence, tokens));
    }
}
