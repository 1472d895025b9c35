//! Files made here, from the format's description.

use bitnet_wgpu::{Result, formats::Checkpoint};
use serde_json::{Value, json};
use std::sync::LazyLock;
use support::files::Directory;
pub use support::files::{safetensors as file, with_header};

pub trait ModelDirectory: Sized {
    fn model(config: &str, file: &[u8]) -> Self;
    fn open(&self) -> Result<Checkpoint>;
}

impl ModelDirectory for Directory {
    fn model(config: &str, file: &[u8]) -> Self {
        let directory = Self::temporary();
        directory.write("config.json", config);
        directory.write("model.safetensors", file);
        directory
    }

    fn open(&self) -> Result<Checkpoint> {
        Checkpoint::open(&self.0)
    }
}

/// The config.json of a small model, with these keys put in; null takes a key away.
pub fn config(keys: Value) -> String {
    let mut config = json!({
        "model_type": "bitnet", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2,
    });
    let config = config.as_object_mut().unwrap();
    for (key, value) in keys.as_object().unwrap() {
        match value {
            Value::Null => drop(config.remove(key)),
            value => drop(config.insert(key.clone(), value.clone())),
        }
    }
    serde_json::to_string(config).unwrap()
}

pub static OFFLINE: LazyLock<String> = LazyLock::new(|| {
    config(
        json!({"quantization_config": {"linear_class": "autobitlinear", "quantization_mode": "offline"}}),
    )
});
pub static PLAIN: LazyLock<String> =
    LazyLock::new(|| config(json!({"quantization_config": {"quant_method": "bitnet"}})));

pub fn bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()
}
