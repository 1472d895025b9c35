//! The tokenizer: text to tokens and back, chat templates, text from a stream of tokens.

pub(super) mod chat;
mod check;
mod gguf;
mod names;
mod pattern;
mod pipeline;
pub(super) mod stream;
pub(super) mod text;
mod to_gguf;
pub(super) mod tools;
#[cfg(feature = "grammar")]
pub(super) mod vocabulary;
