//! Whole models on the device under test and on the CPU: goldens, sessions, batches, streams.

mod batch_invariance;
mod batches;
mod conversation;
mod embeddings;
mod generation;
mod golden;
mod grammar;
mod hybrid;
mod learn;
mod long_texts;
mod model;
#[cfg(target_os = "linux")]
mod msl_model;
mod options;
mod sessions;
mod small_models;
mod speculation;
mod split;
mod stream;
