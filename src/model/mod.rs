//! Whole models: load a BitNet checkpoint, generate text, score text; on a GPU or on the CPU.
//!
//! ```no_run
//! use bitnet_wgpu::model::{GenerateOptions, Model};
//!
//! # fn main() -> bitnet_wgpu::Result<()> {
//! let model = Model::builder("assets/tales-22m").int8_head(true).build()?;
//! for token in model.generate("Once upon a time", &GenerateOptions::default())? {
//!     print!("{}", token?.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | to | see |
//! | --- | --- |
//! | load a model, and choose the device | [`Model::open`], [`Model::builder`], [`ModelFiles`] |
//! | generate text, as an async stream or in a `for` loop | [`Model::generate`], [`Generation`], [`GenerateOptions`] |
//! | hold a conversation, whose KV cache is kept between turns | [`Model::conversation`], [`Message`] |
//! | serve many requests at once (continuous batching) | [`Model::batch`], [`Batch`] |
//! | compute embeddings, logits or log-likelihoods | [`Model::embed`], [`Model::logits`], [`Model::score`] |
//! | control prefill and decode yourself | [`Session`], [`Sampler`] |
//! | separate tool calls and reasoning from an answer | [`ToolCallParser`], [`ReasoningParser`] |
//!
//! Futures and streams run on any executor.

mod batch;
mod conversation;
pub(crate) mod engine;
mod evaluate;
pub(crate) mod generate;
#[cfg(feature = "grammar")]
mod grammar;
mod load;
mod session;
mod threads;
mod tokenizer;
mod tool_calls;

pub use batch::continuous::{Batch, BatchLoad, BatchOptions};
pub use chat_template::{InvalidTime, LocalTime};
pub use conversation::Conversation;
pub use engine::device::Device;
pub use engine::interface::{Offloaded, SessionOptions};
pub use engine::offload::Offload;
pub use evaluate::embed::{EmbedOptions, Embedding};
pub use generate::generation::{Generated, Generation};
pub use generate::logprobs::TokenLogprobs;
pub use generate::options::GenerateOptions;
pub use generate::reasoning::{ReasoningParser, SplitText};
pub use generate::sampling::{Sampler, Sampling};
pub use generate::sequence::Token;
pub use generate::speculation::{Speculation, SpeculationCounts};
pub use generate::stop::Stop;
#[cfg(feature = "grammar")]
pub use grammar::source::Grammar;
pub use load::{builder::ModelBuilder, files::ModelFiles, model::Model};
pub use session::sequences::{Session, SessionError};
pub use threads::background::Blocking;
pub use tokenizer::{
    chat::Message,
    stream::TextStream,
    text::Tokenizer,
    tools::{Tool, ToolCall},
};
#[cfg(feature = "grammar")]
pub use tool_calls::parser::ToolChoice;
pub use tool_calls::{
    event::ToolCallEvent,
    parser::{ParsedAnswer, ToolCallParser},
};
