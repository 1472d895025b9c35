//! Structured output: which tokens may follow, by a grammar.
//!
//! The crate [`llguidance`] parses grammars and computes masks. Of the crates for this, it is the
//! one that computes nothing in advance: a mask costs time only where a sequence comes to it.

mod alternatives;
pub(super) mod bounds;
mod gbnf;
mod matcher;
mod productive;
pub mod source;
mod token_bytes;
