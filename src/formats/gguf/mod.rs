//! GGUF, the format of llama.cpp and bitnet.cpp: everything of a model in one file, or in several.

pub(super) mod blocks;
mod config;
mod cursor;
pub(super) mod file;
mod hadamard;
pub(super) mod keys;
mod layout;
pub(crate) mod metadata;
pub(crate) mod model;
mod parse;
mod split;
pub(super) mod value;
pub(crate) mod vocabulary;
pub(crate) mod write;
