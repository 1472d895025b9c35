//! Qwen3.5: layers of gated DeltaNet with layers of gated attention among them.

use crate::formats::{
    config::{Activation, ModelConfig},
    family::{
        Architecture, BASE, DEFAULTS, DOWN, Defaults, Family, GATE_UP, HEAD_NORMS, OUTPUT, Part,
        RotaryOrder, Rows, projection,
    },
    format_error::{FormatError, unsupported},
    gguf::keys::Keys as GgufKeys,
    hybrid::Hybrid,
    json::Keys,
    local_layers::LocalLayers,
};
use serde_json::{Map, Value};

pub static FAMILY: Family = Family {
    model_types: &["qwen3_5", "qwen3_5_text"],
    architectures: &[Architecture::new("qwen35", Activation::Silu, RotaryOrder::Halves)],
    layer: &[
        Part::Norm("input_layernorm"),
        Part::Linear(&[
            projection("self_attn.q_proj", "", Rows::GatedQueries),
            projection("self_attn.k_proj", "", Rows::Keys),
            projection("self_attn.v_proj", "", Rows::Keys),
        ]),
        Part::KeepGate,
        HEAD_NORMS,
        Part::Attention,
        Part::OutputGate,
        OUTPUT,
        Part::Add,
        Part::Norm("post_attention_layernorm"),
        GATE_UP,
        Part::Gate,
        DOWN,
        Part::Add,
    ],
    recurrent_layer: &[
        Part::Norm("input_layernorm"),
        Part::DeltaRates,
        Part::Linear(&[
            projection("linear_attn.in_proj_qkv", "", Rows::Mixed),
            projection("linear_attn.in_proj_z", "", Rows::Values),
        ]),
        Part::Delta,
        Part::Linear(&[projection("linear_attn.out_proj", "", Rows::Hidden)]),
        Part::Add,
        Part::Norm("post_attention_layernorm"),
        GATE_UP,
        Part::Gate,
        DOWN,
        Part::Add,
    ],
    defaults: Defaults {
        kv_heads: Some(4),
        head_dim: Some(256),
        context: 32_768,
        bos: None,
        eos: None,
        ..DEFAULTS
    },
    read_json,
    read_gguf,
    gguf_names: &[
        ("post_attention_layernorm", "post_attention_norm"),
        ("linear_attn.in_proj_qkv", "attn_qkv"),
        ("linear_attn.in_proj_z", "attn_gate"),
        ("linear_attn.in_proj_a", "ssm_alpha"),
        ("linear_attn.in_proj_b", "ssm_beta"),
        ("linear_attn.conv1d", "ssm_conv1d"),
        ("linear_attn.dt_bias", "ssm_dt.bias"),
        ("linear_attn.A_log", "ssm_a"),
        ("linear_attn.norm", "ssm_norm"),
        ("linear_attn.out_proj", "ssm_out"),
    ],
    not_written: Some("has recurrent layers, which are not written as GGUF"),
    gains_less_one: true,
    ..BASE
};

/// After how many layers one is attention, where files do not say.
const PERIOD: usize = 4;

/// The part of a head that rotates, where files do not say.
const ROTARY: f32 = 0.25;

const FACTOR: &str = "partial_rotary_factor";

type Object = Map<String, Value>;

/// Returns config.json with the keys of its `text_config` beside the others, and what is left of it
/// without what [`read_json`] reads of rotary embedding.
pub fn flat(json: Keys<'_>) -> Result<(Object, Object), FormatError> {
    let mut whole = json.0.clone();
    if let Some(text) = json.object("text_config")? {
        whole.remove("text_config");
        for (key, value) in text.0 {
            whole.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let mut plain = whole.clone();
    plain.remove(FACTOR);
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(own) = plain.get_mut(key).and_then(Value::as_object_mut) {
            own.remove(FACTOR);
        }
    }
    Ok((whole, plain))
}

fn read_json(json: Keys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    if json.get("attn_output_gate").is_some() && !json.flag("attn_output_gate")? {
        return unsupported("attn_output_gate is false: only attention with gates is supported");
    }
    if json.get("quantization").is_some() {
        return unsupported(
            "recurrent layers in files of MLX, whose norms and convolutions differ, are not supported",
        );
    }
    c.hybrid = Some(Hybrid {
        recurrent: recurrent(json, c.layers)?,
        kernel: json.size("linear_conv_kernel_dim", Some(4))?,
        key_heads: json.size("linear_num_key_heads", Some(16))?,
        value_heads: json.size("linear_num_value_heads", Some(32))?,
        key_dim: json.size("linear_key_head_dim", Some(128))?,
        value_dim: json.size("linear_value_head_dim", Some(128))?,
        rotary: rotary(json, c.head_dim)?,
        tiled: false,
        regrouped: false,
    });
    Ok(())
}

/// For each layer, whether it is recurrent.
fn recurrent(json: Keys<'_>, layers: usize) -> Result<Vec<bool>, FormatError> {
    match LocalLayers::of_types(json, "linear_attention")? {
        Some(recurrent) => Ok(recurrent),
        None => {
            Ok(LocalLayers::but_every(json.size("full_attention_interval", Some(PERIOD))?, layers))
        }
    }
}

/// The features of a head of `size` that rotate.
fn rotary(json: Keys<'_>, size: usize) -> Result<usize, FormatError> {
    let mut found: Option<f32> = None;
    let places = [Some(json), json.object("rope_parameters")?, json.object("rope_scaling")?];
    for place in places.into_iter().flatten().filter(|place| place.get(FACTOR).is_some()) {
        let factor = place.float(FACTOR, ROTARY)?;
        if found.is_some_and(|other| other != factor) {
            return unsupported(format!("{FACTOR} has several values"));
        }
        found = Some(factor);
    }
    let factor = found.unwrap_or(ROTARY);
    if !(factor > 0.0 && factor <= 1.0) {
        return Err(format!("{FACTOR} is {factor}; a number up to 1 is needed").into());
    }
    Ok((size as f64 * f64::from(factor)) as usize)
}

fn read_gguf(keys: GgufKeys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    let (key, extra) = keys.get("nextn_predict_layers");
    if extra.is_some_and(|extra| extra.as_u64() != Some(0)) {
        return unsupported(format!(
            "{key} is set: layers that predict further tokens are not supported"
        ));
    }
    let (values, value_heads) =
        (keys.size("ssm.inner_size", None)?, keys.size("ssm.time_step_rank", None)?);
    if !values.is_multiple_of(value_heads) {
        return Err(format!(
            "qwen35.ssm.inner_size is {values}, which does not divide into {value_heads} heads"
        )
        .into());
    }
    let period = keys.size("full_attention_interval", Some(PERIOD))?;
    c.hybrid = Some(Hybrid {
        recurrent: LocalLayers::but_every(period, c.layers),
        kernel: keys.size("ssm.conv_kernel", None)?,
        key_heads: keys.size("ssm.group_count", None)?,
        value_heads,
        key_dim: keys.size("ssm.state_size", None)?,
        value_dim: values / value_heads,
        rotary: keys.size("rope.dimension_count", Some(c.head_dim))?,
        tiled: true,
        regrouped: false,
    });
    Ok(())
}
