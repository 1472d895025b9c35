//! Text generation: options, sampling, stop conditions, speculative decoding.

pub(super) mod chooser;
pub(crate) mod constraint;
pub(super) mod generation;
pub(super) mod logprobs;
pub(super) mod ngram;
pub(super) mod options;
pub(super) mod reasoning;
pub(super) mod sampling;
pub(super) mod sequence;
pub(super) mod speculation;
pub(super) mod stop;
