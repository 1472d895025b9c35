//! What a model is built from, whatever the files.

use super::ModelConfig;
use crate::{PackedDense, PackedTernary, Result};

/// A model's configuration and tensors. Names are those of transformers, without `.weight`: `model.embed_tokens`, `lm_head`, `model.norm`,
/// and of every layer `model.layers.0.` + `input_layernorm`, `post_attention_layernorm`, `self_attn.{q,k,v,o}_proj`,
/// `self_attn.attn_sub_norm`, `mlp.{gate,up,down}_proj`, `mlp.ffn_sub_norm`.
///
/// Shapes are the caller's, from the configuration; a tensor of another shape is an [`Error::Format`](crate::Error::Format) that names it.
pub trait ModelFile: Send + Sync {
    /// The configuration.
    fn config(&self) -> &ModelConfig;

    /// Is there such a tensor?
    fn contains(&self, name: &str) -> bool;

    /// The weights of a BitLinear, `[rows, columns]`; rotary rows are in the order of transformers (halves, not pairs).
    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary>;

    /// The gains of a norm.
    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>>;

    /// An embedding or a head, `[rows, columns]`, as it is stored where a [`DenseElement`](crate::DenseElement) can hold it.
    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense>;
}
