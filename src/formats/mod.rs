//! Readers and writers of ternary checkpoints. [`open`] reads a model in any supported format: a
//! directory as transformers writes it ([`Checkpoint`]), a GGUF file or a prepacked model file.
//! [`GgufFile`] returns the tensors and metadata of any GGUF file.
//! [`write_packed`] packs a float model, [`write_mlx`] writes one for MLX, [`write_gguf`] as a GGUF
//! file.
//!
//! Headers are checked before use, and a tensor's bytes are read when it is asked for: a damaged or
//! hostile file gives an [`Error`](crate::Error) that names the tensor and the offset. So does one
//! that is truncated meanwhile.

pub(crate) mod checkpoint;
mod checkpoint_model;
pub(crate) mod config;
mod config_json;
mod embedding;
mod expert_tensors;
pub(crate) mod experts;
mod families;
pub(crate) mod family;
pub(crate) mod file;
mod float_weights;
pub(crate) mod format_error;
pub(crate) mod generation;
pub(crate) mod gguf;
pub(crate) mod hadamard;
pub(crate) mod hybrid;
pub(crate) mod input_files;
pub(crate) mod json;
mod local_layers;
mod mlx;
pub(crate) mod model_file;
pub(crate) mod open;
mod partial_rotary;
pub(crate) mod prepacked;
mod read_options;
pub(crate) mod rope;
pub(crate) mod safetensors;
mod scale_rule;
mod shards;
pub(crate) mod stand_in;
pub(crate) mod tensors;
mod to_mlx;
pub(crate) mod write;

pub use checkpoint::Checkpoint;
pub(crate) use config::Activation;
pub use config::ModelConfig;
pub use embedding::{EmbeddingDefaults, Pooling};
pub(crate) use format_error::FormatError;
pub(crate) use gguf::model::GgufModel;
pub use gguf::{
    blocks::{GgufType, I2sLayout},
    file::{GgufFile, GgufTensor},
    value::{GgufArray, GgufValue},
    vocabulary::GgufVocabulary,
    write::write_gguf,
};
pub(crate) use hadamard::Hadamard;
pub(crate) use hybrid::Hybrid;
pub use model_file::ModelFile;
pub(crate) use open::{ModelFormat, identify};
pub use open::{open, open_with};
pub use read_options::ReadOptions;
pub(crate) use rope::RopeScaling;
pub(crate) use safetensors::SafeTensors;
pub use safetensors::TensorBytes;
pub use scale_rule::ScaleRule;
pub use to_mlx::write_mlx;
pub use write::{WrittenTensor, write_packed};
