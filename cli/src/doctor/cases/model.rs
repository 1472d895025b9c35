//! Whole models, tiny and with random weights, against the same models on the CPU.

use super::{Case, case};
use crate::{
    doctor::{compare::Bound, trial::Trial},
    random::RandomModel,
};
use anyhow::Result;
use bitnet_wgpu::{
    internals::config_from_json,
    model::{GenerateOptions, Model},
};
use pollster::block_on;

pub const CASES: &[Case] =
    &[case("model, int8 activations", int8), case("model, float activations", floats)];

const INT8: &str = r#"{
    "model_type": "bitnet", "hidden_act": "relu2", "hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 1
}"#;

const FLOATS: &str = r#"{
    "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 300, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true, "eos_token_id": 1
}"#;

/// After attention, whose last bits are a device's own, a code of 8 bits may be the next one. A
/// whole step of one code changes logits by less than this.
fn int8(t: &mut Trial) -> Result<()> {
    logits(t, INT8, 2e-2).map(drop)
}

/// Nothing is that coarse here, so greedy decoding gives the same tokens.
fn floats(t: &mut Trial) -> Result<()> {
    let [there, here] = logits(t, FLOATS, 1e-3)?;
    let prompt = t.ids(9, 300);
    let options = GenerateOptions::default().max_tokens(12).ignore_eos(true);
    let expected = tokens(&here, &prompt, &options)?;
    t.check(Bound::Exact, move || tokens(&there, &prompt, &options), &expected);
    Ok(())
}

/// Expects the logits of the CPU after a prompt. Gives the model on the device and on the CPU.
fn logits(t: &mut Trial, config: &str, share: f64) -> Result<[Model; 2]> {
    let config: serde_json::Value = serde_json::from_str(config)?;
    let file = RandomModel(config_from_json(&config)?);
    let there = Model::builder_from(&file, None).device(&t.context).build()?;
    let here = Model::builder_from(&file, None).cpu().build()?;
    let prompt = t.ids(37, file.0.vocab as u32);
    let expected = block_on(here.logits(&prompt))?;
    let model = there.clone();
    t.check(Bound::Within(share), move || Ok(block_on(model.logits(&prompt))?), &expected);
    Ok([there, here])
}

fn tokens(model: &Model, prompt: &[u32], options: &GenerateOptions) -> Result<Vec<u32>> {
    model.generate_ids(prompt, options)?.into_iter().map(|token| Ok(token?.id)).collect()
}
