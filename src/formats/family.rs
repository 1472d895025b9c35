//! What a family of models is: data of a file in `families/`.

use super::{
    config::{Activation, ModelConfig},
    format_error::FormatError,
    gguf::keys::Keys as GgufKeys,
    json::Keys,
};

/// A family of models: their names and keys in each format, and the steps of a layer.
pub struct Family {
    /// `model_type` in config.json.
    pub model_types: &'static [&'static str],
    /// In GGUF files.
    pub architectures: &'static [Architecture],
    /// The steps of a layer.
    pub layer: &'static [Part],
    /// Those of a recurrent layer, of which some families have some.
    pub recurrent_layer: &'static [Part],
    /// Values of missing keys of config.json.
    pub defaults: Defaults,
    /// The key of config.json that names the activation.
    pub activation_key: &'static str,
    /// Keys of config.json that are not supported, and why.
    pub refused: &'static [(&'static str, &'static str)],
    /// Reads the keys of config.json that only this family has.
    pub read_json: fn(Keys<'_>, &mut ModelConfig) -> Result<(), FormatError>,
    /// Reads the keys of GGUF files that only this family has.
    pub read_gguf: fn(GgufKeys<'_>, &mut ModelConfig) -> Result<(), FormatError>,
    /// Whether GGUF files have keys for the scales of embedding, residual stream and logits.
    pub scale_keys: bool,
    /// Tensors with another name in GGUF files than in those of other families.
    pub gguf_names: &'static [(&'static str, &'static str)],
    /// Why a model is not written as GGUF, where it is not.
    pub not_written: Option<&'static str>,
    /// Whether some layers may see a window of the context only, so that `rope_parameters` has
    /// those of each kind of layers.
    pub windows: bool,
    /// Whether a part of each head may rotate.
    pub partial_rotary: bool,
    /// Whether float weights are those of a model that was trained to be quantized.
    pub trained: bool,
    /// Whether files do not say if activations are quantized.
    pub activations_unsaid: bool,
    /// Whether config.json need not say that a model has no head of its own.
    pub head_unsaid: bool,
    /// Whether the embedding's scale is rounded to the embedding's type.
    pub rounds_scale: bool,
    /// Whether transformers stores gains less 1, but for those of linear layers' own norms.
    pub gains_less_one: bool,
}

impl Family {
    /// Returns whether its feed-forward blocks are mixtures of experts.
    pub fn has_experts(&self) -> bool {
        self.layer.iter().any(|part| matches!(part, Part::Experts))
    }
}

/// The values of keys that config.json may leave out: those of transformers.
pub struct Defaults {
    pub activation: &'static str,
    pub sub_norms: bool,
    pub quantized_activations: bool,
    pub tied_head: bool,
    /// None where there are as many as heads.
    pub kv_heads: Option<usize>,
    /// None where it follows from the hidden size.
    pub head_dim: Option<usize>,
    pub context: usize,
    pub theta: f32,
    pub eps: f32,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
}

/// What `general.architecture` says in a GGUF file.
pub struct Architecture {
    pub name: &'static str,
    pub activation: Activation,
    pub sub_norms: bool,
    pub rotary: RotaryOrder,
    /// Whether it is for models with a tied head, and heads as wide as the model.
    pub tied: bool,
}

impl Architecture {
    /// Without sub-norms.
    pub const fn new(name: &'static str, activation: Activation, rotary: RotaryOrder) -> Self {
        Self { name, activation, sub_norms: false, rotary, tied: false }
    }

    /// Returns its key of this name in GGUF files.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }
}

/// Which two rows of a head of the query and key matrices rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RotaryOrder {
    /// Row i and row i + half: transformers.
    Halves,
    /// Rows 2i and 2i + 1: llama.cpp's converter reorders them so for the architecture `llama`.
    Pairs,
}

/// A family with Llama's layer and defaults, without names.
pub const BASE: Family = Family {
    model_types: &[],
    architectures: &[],
    layer: LLAMA_LAYER,
    recurrent_layer: &[],
    defaults: DEFAULTS,
    activation_key: "hidden_act",
    refused: &[],
    read_json: |_, _| Ok(()),
    read_gguf: |_, _| Ok(()),
    scale_keys: false,
    gguf_names: &[],
    not_written: None,
    windows: false,
    partial_rotary: false,
    trained: false,
    activations_unsaid: false,
    head_unsaid: false,
    rounds_scale: false,
    gains_less_one: false,
};

/// Llama's defaults, with activations in floats.
pub const DEFAULTS: Defaults = Defaults {
    activation: "silu",
    sub_norms: false,
    quantized_activations: false,
    tied_head: false,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    theta: 10_000.0,
    eps: 1e-6,
    bos: Some(1),
    eos: Some(2),
};

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
    /// A mixture of experts.
    Experts,
    /// Adds the value to the residual stream.
    Add,
    /// Keeps the gate of the attention's output, which follows queries, keys and values.
    KeepGate,
    /// Multiplies the attention's output by the logistic function of its gate.
    OutputGate,
    /// Dense linear layers for the decay and the rate of gated DeltaNet.
    DeltaRates,
    /// Convolution over time, the delta rule, and a gated norm.
    Delta,
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
    /// Twice `heads · head_dim`: of each head queries, and then the gate of its output.
    GatedQueries,
    /// Queries, keys and values of recurrent layers.
    Mixed,
    /// Values of recurrent layers.
    Values,
}

pub(super) const fn projection(name: &'static str, norm: &'static str, rows: Rows) -> Projection {
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
/// Norms of heads.
pub const HEAD_NORMS: Part = Part::HeadNorms("self_attn.q_norm", "self_attn.k_norm");
/// BitNet's norm before the attention's output projection.
pub const ATTENTION_SUB_NORM: Part = Part::SubNorm("self_attn.attn_sub_norm");
/// BitNet's norm before the feed-forward block's output projection.
pub const FEED_FORWARD_SUB_NORM: Part = Part::SubNorm("mlp.ffn_sub_norm");

/// The layer of Llama, and of BitNet with sub-norms.
pub const LLAMA_LAYER: &[Part] = &[
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
