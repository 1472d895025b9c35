//! Qwen3, and ternary models with its graph: Bonsai.

use crate::formats::{
    config::Activation,
    family::{
        ATTENTION_SUB_NORM, Architecture, BASE, DEFAULTS, DOWN, Defaults, FEED_FORWARD_SUB_NORM,
        Family, GATE_UP, HEAD_NORMS, OUTPUT, Part, QKV, RotaryOrder,
    },
};

pub static FAMILY: Family = Family {
    model_types: &["qwen3"],
    architectures: &[Architecture::new("qwen3", Activation::Silu, RotaryOrder::Halves)],
    layer: &[
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
    ],
    defaults: Defaults {
        kv_heads: Some(32),
        head_dim: Some(128),
        context: 32_768,
        bos: None,
        eos: None,
        ..DEFAULTS
    },
    ..BASE
};
