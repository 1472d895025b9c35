//! Readers of ternary checkpoints: [`SafeTensors`] for single files, [`Checkpoint`] for a model directory with its configuration.
//!
//! Files are mapped, not read, and checked before anything in them is believed: a damaged or hostile file gives an [`Error`](crate::Error)
//! that names the tensor and the offset.

mod checkpoint;
mod config;
mod mapped;
mod model_file;
mod safetensors;

pub use checkpoint::{Checkpoint, ScaleRule};
pub use config::{Activation, ModelConfig, RopeScaling};
pub use model_file::ModelFile;
pub use safetensors::{SafeTensors, TensorBytes};
