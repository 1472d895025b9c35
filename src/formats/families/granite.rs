//! Granite: Llama's layer, with scales of embedding, queries, residual stream and logits.

use crate::formats::{
    config::{Activation, ModelConfig},
    family::{Architecture, BASE, Family, RotaryOrder},
    gguf::keys::Keys as GgufKeys,
    json::Keys,
    problem::{Problem, unsupported},
};

pub static FAMILY: Family = Family {
    model_types: &["granite"],
    architectures: &[Architecture::new("granite", Activation::Silu, RotaryOrder::Pairs)],
    read_json: scales,
    read_gguf: check_rotary,
    scale_keys: true,
    ..BASE
};

fn scales(json: Keys<'_>, c: &mut ModelConfig) -> Result<(), Problem> {
    c.embedding_scale = json.float("embedding_multiplier", 1.0)?;
    c.query_scale = json.float("attention_multiplier", 1.0)? * (c.head_dim as f32).sqrt();
    c.residual_scale = json.float("residual_multiplier", 1.0)?;
    c.logit_scale = 1.0 / json.float("logits_scaling", 1.0)?;
    Ok(())
}

/// Refuses models without rotary embedding, as llama.cpp knows them.
fn check_rotary(keys: GgufKeys<'_>, _: &mut ModelConfig) -> Result<(), Problem> {
    let (key, rotates) = keys.get("rope.scaling.finetuned");
    match rotates.and_then(|value| value.as_bool()) {
        Some(false) => unsupported(format!(
            "{key} is false: models without rotary embedding are not supported"
        )),
        _ => Ok(()),
    }
}
