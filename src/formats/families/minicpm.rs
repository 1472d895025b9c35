//! MiniCPM: Llama's layer, with scales of embedding, residual stream and logits.

use crate::formats::{
    config::{Activation, ModelConfig},
    family::{Architecture, BASE, Family, RotaryOrder},
    format_error::FormatError,
    json::Keys,
};

pub static FAMILY: Family = Family {
    model_types: &["minicpm"],
    architectures: &[Architecture::new("minicpm", Activation::Silu, RotaryOrder::Pairs)],
    // Beyond some thousand tokens, it attends to some only.
    refused: &[("sparse_config", "only attention to the whole context is")],
    read_json: scales,
    scale_keys: true,
    head_unsaid: true,
    ..BASE
};

fn scales(json: Keys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    c.embedding_scale = json.float("scale_emb", 1.0)?;
    c.residual_scale = json.float("scale_depth", 1.0)? / (c.layers as f32).sqrt();
    c.logit_scale = json.float("dim_model_base", 1.0)? / c.hidden as f32;
    Ok(())
}
