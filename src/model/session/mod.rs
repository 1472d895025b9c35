//! Sequences with their key-value caches, in memory and in files.

pub(super) mod saved;
pub(super) mod sequences;
