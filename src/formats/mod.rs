//! Readers and a writer of ternary checkpoints. [`open`] reads a model in any supported format: a directory as transformers writes it
//! ([`Checkpoint`]) or one GGUF file ([`Gguf`]). [`SafeTensors`] and [`GgufFile`] give the tensors of any single file. [`write_packed`]
//! packs a float model.
//!
//! Files are memory-mapped, and their headers checked before use: a damaged or hostile file gives an [`Error`](crate::Error) that names the
//! tensor and the offset.

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
