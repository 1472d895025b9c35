//! Readers and a writer of ternary checkpoints: [`open`] for whichever it is, [`Checkpoint`] for a model directory as transformers writes it,
//! [`Gguf`] for a model in one GGUF file; [`SafeTensors`] and [`GgufFile`] for the tensors of single files, whatever they are;
//! [`write_packed`] to pack a model in floats.
//!
//! Files are mapped, not read, and checked before anything in them is believed: a damaged or hostile file gives an [`Error`](crate::Error)
//! that names the tensor and the offset.

mod checkpoint;
mod config;
mod gguf;
mod mapped;
mod model_file;
mod open;
mod safetensors;
mod shards;
mod write;

pub use checkpoint::{Checkpoint, ScaleRule};
pub use config::{Activation, ModelConfig, RopeScaling};
pub use gguf::{Gguf, GgufArray, GgufFile, GgufTensor, GgufType, GgufValue, GgufVocabulary, I2sLayout, RotaryOrder};
pub use model_file::ModelFile;
pub use open::{Kind, kind, open};
pub use safetensors::{SafeTensors, TensorBytes};
pub use write::{WrittenTensor, write_packed};
