//! Sequences with their key-value caches, in memory and in files.

mod checks;
pub(super) mod saved;
pub(super) mod sequences;
mod undo;
