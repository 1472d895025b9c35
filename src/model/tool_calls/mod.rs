//! Tool calls: the form in which a chat template writes them, and how they are read from answers.

mod call;
mod format;
pub(super) mod parser;
#[cfg(test)]
mod tests;
