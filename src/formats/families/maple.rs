//! Maple: mixtures of experts with clamped gates. Layers that see a window rotate a part of each
//! head, and the others rotate nothing.

use super::qwen3_moe::{GGUF_NAMES, LAYER, NOT_WRITTEN};
use crate::{
    formats::{
        config::{Activation, ModelConfig},
        experts::MixtureOfExperts,
        family::{Architecture, BASE, DEFAULTS, Defaults, Family, RotaryOrder},
        format_error::{FormatError, unsupported},
        gguf::keys::Keys as GgufKeys,
        json::Keys,
        local_layers::LocalLayers,
        partial_rotary::{self, PartialRotary},
    },
    limits::files::MOST_SIZE,
};

pub static FAMILY: Family = Family {
    model_types: &["maple"],
    architectures: &[Architecture::new("maple", Activation::Silu, RotaryOrder::Halves)],
    layer: LAYER,
    defaults: Defaults {
        kv_heads: Some(4),
        head_dim: Some(128),
        context: 131_072,
        bos: None,
        eos: None,
        ..DEFAULTS
    },
    refused: &[
        ("attn_output_gate", "gates of attention are not implemented"),
        ("expert_bias", "biases of experts are not implemented"),
    ],
    read_json,
    read_gguf,
    gguf_names: GGUF_NAMES,
    not_written: Some(NOT_WRITTEN),
    windows: true,
    partial_rotary: true,
    ..BASE
};

/// Gates are at most this, and ups between this and its negative.
const LIMIT: f32 = 7.0;
/// The share of a head that rotates, where files do not say.
const FACTOR: f32 = 0.5;
/// A layer that sees the whole context follows three that see a window, where files do not say.
const PERIOD: usize = 4;
/// Positions of a window, where files do not say.
const WINDOW: usize = 512;

fn read_json(json: Keys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    if json.flag("use_bias")? || json.flag("moe_router_enable_expert_bias")? {
        return unsupported("use_bias or moe_router_enable_expert_bias: biases are not supported");
    }
    for key in ["use_qk_norm", "nope_on_global_attention"] {
        if json.get(key).is_some() && !json.flag(key)? {
            return unsupported(format!("{key} is false, which is not supported"));
        }
    }
    let experts = MixtureOfExperts::read_json(json, c.intermediate, (256, 8, true))?;
    let local = match LocalLayers::of_types(json, "sliding_attention")? {
        Some(local) => local,
        None => LocalLayers::but_every(PERIOD, c.layers),
    };
    // The model's own code counts the positions before a token.
    let window = json.size("sliding_window", Some(WINDOW))? + 1;
    let dims = partial_rotary::dims(json, c.head_dim, FACTOR)?;
    finish(c, experts, (local, window), dims)
}

fn read_gguf(keys: GgufKeys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    let experts = MixtureOfExperts::read_gguf(keys)?;
    let limit = keys.get("swiglu_clamp_exp").1;
    let is_limit = |value: f64| value as f32 == LIMIT;
    if limit.is_some_and(|limit| match limit.as_array() {
        Some(array) => !array.iter().all(|own| own.as_f64().is_some_and(is_limit)),
        None => !limit.as_f64().is_some_and(is_limit),
    }) {
        return unsupported(format!("maple.swiglu_clamp_exp: only {LIMIT} is supported"));
    }
    let (key, pattern) = keys.get("attention.sliding_window_pattern");
    let flags = pattern.and_then(|pattern| pattern.as_array());
    let flags = flags.map(|flags| flags.iter().map(|flag| flag.as_bool()).collect());
    let local: Option<Vec<bool>> = match flags {
        Some(flags) => flags,
        None if pattern.is_none() => Some(LocalLayers::but_every(PERIOD, c.layers)),
        None => None,
    };
    let local = local.ok_or_else(|| format!("{key} is not a list of true and false"))?;
    let window = keys.size("attention.sliding_window", None)?.min(MOST_SIZE);
    // Older converters say that layers without a window rotate nothing, and the rest beside it.
    let dims = match keys.get("rope.dimension_count").1.and_then(|count| count.as_u64()) {
        Some(0) => keys.size("rope.dimension_count_swa", None)?,
        _ => keys.size("rope.dimension_count", None)?,
    };
    c.rope_theta = keys.float("rope.freq_base_swa", Some(c.rope_theta))?;
    finish(c, experts, (local, window), dims)
}

fn finish(
    c: &mut ModelConfig,
    (experts, intermediate): (MixtureOfExperts, usize),
    (local, window): (Vec<bool>, usize),
    dims: usize,
) -> Result<(), FormatError> {
    c.local = LocalLayers::of(local, c.layers, window, c.rope_theta)?;
    c.rotary = Some(PartialRotary { dims, local_only: true });
    c.experts = Some(MixtureOfExperts { gate_limit: Some(LIMIT), ..experts });
    c.intermediate = intermediate;
    Ok(())
}
