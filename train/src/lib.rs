//! Trains ternary language models on a GPU, from a folder of text to a model of one's own.
//!
//! The model is one of the library's: its config.json gives the steps of its layers, and one
//! interpreter executes them forward, another one backward. Float weights are on the GPU. Each step
//! makes them ternary anew, and gradients pass straight through the quantizers (BitNet b1.58,
//! arXiv:2402.17764). There is no automatic differentiation.
//!
//! | | |
//! | --- | --- |
//! | [`Source`] | a config.json, or a folder with float weights |
//! | [`Corpus`] | text as windows of tokens |
//! | [`Settings`] | steps, batch, learning rate |
//! | [`Trainer`] | steps, checkpoints, export |
//! | [`score`] | the exported model's loss by the inference path |
//!
//! Models of bitnet, llama and qwen3 can be trained. Runs are bit-identical on one device, also
//! those that were resumed from a checkpoint.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc)]

mod checkpoint;
mod data;
mod error;
mod export;
mod interpreter;
mod network;
mod plan;
mod random;
mod score;
mod settings;
mod source;
mod steps;
mod trainer;

pub use bitnet_wgpu::weights::DenseElement;
pub use checkpoint::{Progress, latest};
pub use data::{Corpus, end_of_text};
pub use error::{Error, Result};
pub use plan::{Kind, ParameterInfo};
pub use score::{Score, score};
pub use settings::{LinearMode, Schedule, Settings};
pub use source::Source;
pub use trainer::{StepReport, Trainer};
