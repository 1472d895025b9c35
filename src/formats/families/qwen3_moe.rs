//! Qwen3's mixtures of experts.

use crate::formats::{
    config::{Activation, ModelConfig},
    experts::MixtureOfExperts,
    family::{
        Architecture, BASE, DEFAULTS, Defaults, Family, HEAD_NORMS, OUTPUT, Part, QKV, RotaryOrder,
    },
    format_error::FormatError,
    gguf::keys::Keys as GgufKeys,
    json::Keys,
};

/// The layer of Qwen3's and Maple's mixtures of experts.
pub(super) const LAYER: &[Part] = &[
    Part::Norm("input_layernorm"),
    QKV,
    HEAD_NORMS,
    Part::Attention,
    OUTPUT,
    Part::Add,
    Part::Norm("post_attention_layernorm"),
    Part::Experts,
    Part::Add,
];

/// Names of GGUF files. Those of experts' matrices, of which there are three, are the reader's.
pub(super) const GGUF_NAMES: &[(&str, &str)] = &[("mlp.gate", "ffn_gate_inp")];

/// Why a mixture of experts is not written as GGUF.
pub(super) const NOT_WRITTEN: &str = "is a mixture of experts, which is not written as GGUF";

pub static FAMILY: Family = Family {
    model_types: &["qwen3_moe"],
    architectures: &[Architecture::new("qwen3moe", Activation::Silu, RotaryOrder::Halves)],
    layer: LAYER,
    defaults: Defaults { kv_heads: Some(4), context: 32_768, bos: None, eos: None, ..DEFAULTS },
    read_json,
    read_gguf,
    gguf_names: GGUF_NAMES,
    not_written: Some(NOT_WRITTEN),
    ..BASE
};

fn read_json(json: Keys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    let (experts, intermediate) =
        MixtureOfExperts::read_json(json, c.intermediate, (128, 8, false))?;
    (c.experts, c.intermediate) = (Some(experts), intermediate);
    Ok(())
}

fn read_gguf(keys: GgufKeys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    let (experts, intermediate) = MixtureOfExperts::read_gguf(keys)?;
    (c.experts, c.intermediate) = (Some(experts), intermediate);
    Ok(())
}
