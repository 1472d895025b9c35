//! Granite: Llama's layer, with scales of embedding, queries, residual stream and logits.

use crate::formats::{
    config::{Activation, ModelConfig},
    family::{Architecture, BASE, Family, RotaryOrder},
    format_error::{FormatError, unsupported},
    gguf::keys::Keys as GgufKeys,
    json::Keys,
};

pub static FAMILY: Family = Family {
    model_types: &["granite"],
    architectures: &[Architecture::new("granite", Activation::Silu, RotaryOrder::Pairs)],
    read_json,
    read_gguf,
    scale_keys: true,
    ..BASE
};

fn read_json(json: Keys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    c.embedding_scale = json.float("embedding_multiplier", 1.0)?;
    c.query_scale = json.float("attention_multiplier", 1.0)? * (c.head_dim as f32).sqrt();
    c.residual_scale = json.float("residual_multiplier", 1.0)?;
    c.logit_scale = 1.0 / json.float("logits_scaling", 1.0)?;
    Ok(())
}

fn read_gguf(keys: GgufKeys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    // As llama.cpp knows models without rotary embedding.
    let (key, rotates) = keys.get("rope.scaling.finetuned");
    if rotates.and_then(|value| value.as_bool()) == Some(false) {
        return unsupported(format!(
            "{key} is false: models without rotary embedding are not supported"
        ));
    }
    if keys.get("attention.scale").1.is_some() {
        c.query_scale = keys.float("attention.scale", None)? * (c.head_dim as f32).sqrt();
    }
    Ok(())
}
