//! Embeddings and log-likelihoods of texts.

pub(super) mod embed;
pub(super) mod groups;
pub(super) mod score;
