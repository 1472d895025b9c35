//! Tool calls: the form in which a chat template writes them, and how they are read from answers.

mod call;
pub(super) mod event;
mod format;
#[cfg(feature = "grammar")]
mod grammar;
#[cfg(all(test, feature = "grammar"))]
mod grammar_tests;
pub(super) mod parser;
mod schema;
#[cfg(test)]
mod tests;
