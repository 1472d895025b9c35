//! Structured output: which tokens may follow, by a grammar.
//!
//! The crate [`llguidance`] parses grammars and computes masks. Of the crates for this, it is the
//! one that computes nothing in advance: a mask costs time only where a sequence comes to it.

pub(super) mod bounds;
pub mod grammar;
mod matcher;
mod productive;
mod token_bytes;
