//! Trains ternary language models on a GPU, from a folder of text to a model of one's own.
//!
//! The model is one of the library's: its config.json gives the steps of its layers, and one
//! interpreter executes them forward, another one backward. Float weights are on the GPU. Each step
//! makes them ternary anew, and gradients pass straight through the quantizers (BitNet b1.58,
//! arXiv:2402.17764). There is no automatic differentiation.
//!
//! | | |
//! | --- | --- |
//! | [`Source`] | a config.json, or a model to start from, with float or ternary weights |
//! | [`Corpus`] | text and conversations as windows of tokens |
//! | [`Settings`] | steps, batch, learning rate |
//! | [`Lora`] | adapters, which are trained in place of the weights |
//! | [`Teacher`] | a model from whose distribution a student learns; [`write_text`] lets it write the text |
//! | [`Trainer`] | steps, checkpoints, export |
//! | [`score`] | the exported model's loss by the inference path |
//!
//! Models of bitnet, llama and qwen3 can be trained. Runs are bit-identical on one device, also
//! those that were resumed from a checkpoint.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc)]

mod chat;
mod checkpoint;
mod data;
mod error;
mod evaluate;
mod export;
mod files;
mod interpreter;
mod lesson;
mod linear;
mod lock;
mod lora;
mod memory;
mod network;
mod plan;
mod random;
mod sample;
mod score;
mod settings;
mod source;
mod steps;
mod teacher;
mod tensors;
mod ternary;
mod trainer;
mod writing;

pub use bitnet_wgpu::weights::DenseElement;
pub use checkpoint::{Progress, latest};
pub use data::{ChatReport, Corpus, end_of_text};
pub use error::{Error, Result};
pub use lock::FolderLock;
pub use lora::Lora;
pub use memory::Memory;
pub use plan::{Kind, ParameterInfo};
pub use score::{Score, score};
pub use settings::{LinearMode, Precision, Schedule, Settings};
pub use source::Source;
pub use teacher::{Distillation, Teacher};
pub use trainer::{StepReport, Trainer};
pub use writing::{Writing, write_text};
