//! Whole models: load a BitNet checkpoint, generate text, score text; on a GPU or on the CPU.
//!
//! ```no_run
//! use bitnet_wgpu::{Context, model::{GenerateOptions, Model}};
//!
//! # fn main() -> bitnet_wgpu::Result<()> {
//! let context = pollster::block_on(Context::new())?;
//! let model = Model::load(&context, "assets/tales-22m")?;
//! for token in model.generate("Once upon a time", &GenerateOptions::default())? {
//!     print!("{}", token?.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Model::generate`] gives a [`Stream`](futures_core::Stream), which a `for` loop takes too (and
//! blocks); [`Model::logits`] and [`Model::score`] are futures for any executor. A [`Session`] is
//! the layer below: sequences, their key-value caches, prefill and decode.

// Imports go one way: sampling, tokenizer, config, layers, devices < reasoning, saved, worker,
// mailbox < stop, ngram < engine < cpu, session < offload, gpu < speculate < options < choice,
// feed, files < native, sequence < generate, slots < loaded < auto, batch, embed; batch < together.
mod auto;
mod batch;
mod choice;
mod config;
mod cpu;
mod devices;
mod embed;
mod engine;
mod feed;
mod files;
mod generate;
mod gpu;
mod groups;
mod layers;
mod loaded;
mod mailbox;
mod native;
mod ngram;
mod offload;
mod options;
mod reasoning;
mod sampling;
mod saved;
mod score;
mod sequence;
mod session;
mod slots;
mod speculate;
mod stop;
mod together;
mod tokenizer;
mod worker;

pub use auto::{DevicePolicy, Placement};
pub use batch::{Batch, BatchLoad, BatchOptions, Generated, TokenStream};
pub use devices::Devices;
pub use embed::{EmbedOptions, Embedding};
pub use engine::{ModelPart, Offloaded, SessionOptions};
pub use feed::Blocking;
pub use files::{LoadOptions, ModelFiles};
pub use generate::Generation;
pub use loaded::Model;
pub use native::write_native;
pub use offload::Offload;
pub use options::{GenerateOptions, LogitsHook};
pub use reasoning::{Reasoning, Said};
pub use sampling::{Sampler, Sampling};
pub use sequence::Token;
pub use session::Session;
pub use speculate::{DraftModel, Drafter, Speculation, SpeculationCounts};
pub use stop::Stop;
pub use together::{BatchGeneration, BatchToken};
pub use tokenizer::{chat::Message, stream::TextStream, text::Tokenizer};
