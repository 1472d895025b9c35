//! Training on a GPU: gradients, bits, checkpoints, exported models.

mod distil;
mod export;
mod finetune;
mod gradients;
mod run;

use bitnet_train::{Corpus, LinearMode, Result, Settings, Source, Trainer};
use bitnet_wgpu::{Context, Tensor};
use serde_json::{Value, json};
use std::{fs, path::Path, sync::OnceLock};

/// The folder of a real tokenizer, of 2048 tokens.
const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");

fn context() -> &'static Context {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    CONTEXT.get_or_init(|| pollster::block_on(Context::new()).unwrap())
}

/// A small model of a family, with odd sizes and shared keys: BitNet with sub-norms, relu² and a
/// tied head; Llama with an untied head; Qwen3 with norms of heads.
fn config(family: &str, vocab: usize) -> Value {
    let mut json = json!({
        "model_type": family, "hidden_size": 24, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "vocab_size": vocab,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": family != "llama", "initializer_range": 0.2,
        "bos_token_id": 0, "eos_token_id": 1,
    });
    if family == "bitnet" {
        json["hidden_act"] = "relu2".into();
    }
    json
}

fn source(json: &Value) -> Source {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    Source::from_config(folder.path()).unwrap()
}

/// Tokens that follow from a seed, and repeat themselves enough to be learned.
fn ids(count: usize, vocab: u32, seed: u32) -> Vec<u32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) * (state >> 24) / 256 % vocab
        })
        .collect()
}

fn trainer(json: &Value, text: Corpus, settings: Settings) -> Result<Trainer> {
    Trainer::new(context(), source(json), text, settings)
}

fn settings(steps: u64, linear: LinearMode) -> Settings {
    let mut settings = Settings::new(steps, 2, 8);
    settings.linear = linear;
    settings
}

fn read(tensor: &Tensor<f32>) -> Vec<f32> {
    pollster::block_on(tensor.read()).unwrap()
}

fn bits(trainer: &Trainer) -> Vec<Vec<u32>> {
    let bits = |tensor| read(tensor).into_iter().map(f32::to_bits).collect();
    trainer.weights().iter().map(bits).collect()
}

fn bytes(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).unwrap()
}
