//! The common interface of all checkpoint formats.

use super::config::ModelConfig;
use crate::{
    error::Result,
    weights::{dense::PackedDense, ternary::packed::PackedTernary},
};

/// A model's configuration and tensors. Tensor names are those of transformers without `.weight`:
/// `model.embed_tokens`, `lm_head`, `model.norm`, and for each layer `model.layers.0.` +
/// `input_layernorm`, `post_attention_layernorm`, `self_attn.{q,k,v,o}_proj`,
/// `self_attn.{q,k}_norm`, `self_attn.attn_sub_norm`, `mlp.{gate,up,down}_proj`,
/// `mlp.ffn_sub_norm`, and of Gemma `{pre,post}_feedforward_layernorm`; where every linear layer
/// has a norm of its own, the layer's name and `.norm`. Recurrent layers have
/// `linear_attn.in_proj_{qkv,z,a,b}`, `linear_attn.{conv1d,dt_bias,A_log,norm,out_proj}`, of which
/// `A_log` is read as -exp(A_log), and `in_proj_a`, `in_proj_b` and `conv1d` as dense matrices.
/// A mixture of experts has a dense `mlp.gate`
/// `[experts, hidden]`, and of all experts, one after another, `mlp.experts.gate_up_proj` (gates and
/// ups of each) and `mlp.experts.down_proj`.
///
/// Callers pass the shape that the configuration implies; another shape is an
/// [`Error::Format`](crate::Error::Format) that names the tensor.
pub trait ModelFile: Send + Sync {
    /// Returns the configuration.
    fn config(&self) -> &ModelConfig;

    /// Checks that a model of this configuration uses all tensors of the file. Where some are not,
    /// it may be one of more layers, or of another kind.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) that names some which are not.
    fn check_unused(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether there is such a tensor.
    fn contains(&self, name: &str) -> bool;

    /// Returns the weights of a BitLinear, `[rows, columns]`. In queries and keys, row i of a head
    /// rotates with row i + half, as in transformers.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) for a tensor that is missing or of another shape, or
    /// weights that are not ternary; [`Error::Unsupported`](crate::Error::Unsupported) for a type
    /// that is not read.
    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary>;

    /// Returns the weights of several BitLinears of one input, `[rows, columns]`: their rows one
    /// after another, as kernels read them, where the file has them so; else none, and whoever
    /// wants them asks for each, and stacks them. `rows` is of all of them.
    ///
    /// ```
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// use bitnet_wgpu::formats::{self, ModelFile};
    ///
    /// let model = formats::open("assets/tales-22m")?; // as transformers lays models out: each by itself
    /// let names = ["q", "k", "v"].map(|name| format!("model.layers.0.self_attn.{name}_proj"));
    /// let names: Vec<&str> = names.iter().map(String::as_str).collect();
    /// assert!(model.stacked(&names, 1024, 512)?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ModelFile::linear`].
    fn stacked(
        &self,
        names: &[&str],
        rows: usize,
        columns: usize,
    ) -> Result<Option<PackedTernary>> {
        let _ = (names, rows, columns);
        Ok(None)
    }

    /// Returns the gains of a norm, `[len]`, as they multiply, but for scales of the configuration:
    /// Gemma's are stored less 1 by transformers.
    ///
    /// # Errors
    /// As [`ModelFile::linear`]; [`Error::Format`](crate::Error::Format) for a number that is not
    /// finite.
    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>>;

    /// Returns an embedding or a head, `[rows, columns]`, in its stored type if there is a
    /// [`DenseElement`](crate::weights::DenseElement) for it.
    ///
    /// # Errors
    /// As [`ModelFile::vector`].
    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense>;

    /// [`ModelFile::dense`] as a ternary matrix of the same numbers, where the file has it so; else
    /// none, and whoever wants it asks for the other.
    ///
    /// # Errors
    /// As [`ModelFile::dense`]. A matrix that is in a ternary type and has other weights is none,
    /// not an error.
    fn ternary_table(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Option<PackedTernary>> {
        let _ = (name, rows, columns);
        Ok(None)
    }
}
