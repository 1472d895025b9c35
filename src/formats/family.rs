//! What a family of models is: here the steps of its layers, by names of tensors.

/// A step of every layer of a family. [`layer_tensors`](super::tensors::layer_tensors) makes the
/// steps of a model of it.
pub enum Part {
    /// RMSNorm, with the gains of this name.
    Norm(&'static str),
    /// A norm that only some models of the family have.
    SubNorm(&'static str),
    /// Linear layers of one input.
    Linear(&'static [Projection]),
    /// RMSNorm of every query head and of every key head, with these gains.
    HeadNorms(&'static str, &'static str),
    /// Rotary embedding, and causal attention.
    Attention,
    /// act(gate)·up.
    Gate,
    /// Adds the value to the residual stream.
    Add,
}

/// A linear layer of a family.
pub struct Projection {
    pub name: &'static str,
    /// The gains of its own norm, in models that have one before every linear layer.
    pub norm: &'static str,
    pub rows: Rows,
}

/// The number of rows of a matrix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// `heads · head_dim`, of queries.
    Queries,
    /// `kv_heads · head_dim`.
    Keys,
    /// `hidden`
    Hidden,
    /// `intermediate`
    Intermediate,
}

const fn projection(name: &'static str, norm: &'static str, rows: Rows) -> Projection {
    Projection { name, norm, rows }
}

/// Queries, keys and values.
pub const QKV: Part = Part::Linear(&[
    projection("self_attn.q_proj", "self_attn.q_proj.norm", Rows::Queries),
    projection("self_attn.k_proj", "self_attn.k_proj.norm", Rows::Keys),
    projection("self_attn.v_proj", "self_attn.v_proj.norm", Rows::Keys),
]);
/// The attention's output projection.
pub const OUTPUT: Part =
    Part::Linear(&[projection("self_attn.o_proj", "self_attn.o_proj.norm", Rows::Hidden)]);
/// Gate and up.
pub const GATE_UP: Part = Part::Linear(&[
    projection("mlp.gate_proj", "mlp.gate_proj.norm", Rows::Intermediate),
    projection("mlp.up_proj", "mlp.up_proj.norm", Rows::Intermediate),
]);
/// The feed-forward block's output projection.
pub const DOWN: Part =
    Part::Linear(&[projection("mlp.down_proj", "mlp.down_proj.norm", Rows::Hidden)]);
const HEAD_NORMS: Part = Part::HeadNorms("self_attn.q_norm", "self_attn.k_norm");
const ATTENTION_SUB_NORM: Part = Part::SubNorm("self_attn.attn_sub_norm");
const FEED_FORWARD_SUB_NORM: Part = Part::SubNorm("mlp.ffn_sub_norm");

/// The layer of Llama, and of BitNet with sub-norms.
pub const LLAMA: &[Part] = &[
    Part::Norm("input_layernorm"),
    QKV,
    Part::Attention,
    ATTENTION_SUB_NORM,
    OUTPUT,
    Part::Add,
    Part::Norm("post_attention_layernorm"),
    GATE_UP,
    Part::Gate,
    FEED_FORWARD_SUB_NORM,
    DOWN,
    Part::Add,
];

/// The layer of Qwen3.
pub const QWEN3: &[Part] = &[
    Part::Norm("input_layernorm"),
    QKV,
    HEAD_NORMS,
    Part::Attention,
    ATTENTION_SUB_NORM,
    OUTPUT,
    Part::Add,
    Part::Norm("post_attention_layernorm"),
    GATE_UP,
    Part::Gate,
    FEED_FORWARD_SUB_NORM,
    DOWN,
    Part::Add,
];

/// The layer of Gemma 3.
pub const GEMMA3: &[Part] = &[
    Part::Norm("input_layernorm"),
    QKV,
    HEAD_NORMS,
    Part::Attention,
    ATTENTION_SUB_NORM,
    OUTPUT,
    Part::Norm("post_attention_layernorm"),
    Part::Add,
    Part::Norm("pre_feedforward_layernorm"),
    GATE_UP,
    Part::Gate,
    FEED_FORWARD_SUB_NORM,
    DOWN,
    Part::Norm("post_feedforward_layernorm"),
    Part::Add,
];
