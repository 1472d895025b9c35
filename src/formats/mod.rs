//! Readers of ternary checkpoints: [`open`] for whichever it is, [`Checkpoint`] for a model directory with its configuration,
//! [`SafeTensors`] for single files.
//!
//! Files are mapped, not read, and checked before anything in them is believed: a damaged or hostile file gives an [`Error`](crate::Error)
//! that names the tensor and the offset.

mod checkpoint;
mod config;
mod mapped;
mod model_file;
mod open;
mod safetensors;
mod shards;

pub use checkpoint::{Checkpoint, ScaleRule};
pub use config::{Activation, ModelConfig, RopeScaling};
pub use model_file::ModelFile;
pub use open::open;
pub use safetensors::{SafeTensors, TensorBytes};
