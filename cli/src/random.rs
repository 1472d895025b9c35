//! A model with random weights, to time shapes of which there are no weights at hand.

use bitnet_wgpu::{
    DenseElement, PackedDense, PackedTernary, Result, Scales,
    formats::{ModelConfig, ModelFile},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

/// The shape of BitNet b1.58 2B4T.
pub const BITNET_2B4T: &str = r#"{
    "model_type": "bitnet", "hidden_act": "relu2", "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 30,
    "num_attention_heads": 20, "num_key_value_heads": 5, "vocab_size": 128256, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": true, "bos_token_id": 128000, "eos_token_id": 128001
}"#;

/// Random ternary layers and a random embedding in bf16.
pub struct RandomModel(pub ModelConfig);

impl ModelFile for RandomModel {
    fn config(&self) -> &ModelConfig {
        &self.0
    }

    fn contains(&self, _: &str) -> bool {
        true
    }

    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        let mut rng = seeded(name);
        if !columns.is_multiple_of(64) {
            let values: Vec<i8> = (0..rows * columns).map(|_| (rng.next_u32() % 3) as i8 - 1).collect();
            return PackedTernary::from_values(rows, columns, &values, Scales::Tensor(0.02));
        }
        // Each 2-bit code is 1 with probability 1/2, else 0 or 2.
        let word = |r: u64| {
            let (ones, high) = (r as u32 & 0x5555_5555, (r >> 32) as u32 & 0x5555_5555);
            ones | (high & !ones) << 1
        };
        let words = (0..rows * columns / 16).map(|_| word(rng.next_u64())).collect();
        PackedTernary::from_words(rows, columns, words, Scales::Tensor(0.02))
    }

    fn vector(&self, _: &str, len: usize) -> Result<Vec<f32>> {
        Ok(vec![1.0; len])
    }

    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense> {
        let mut rng = seeded(name);
        // bf16 numbers with magnitudes from 0.5 to 2 and either sign.
        let halves: Vec<u8> = (0..rows * columns).flat_map(|_| ((rng.next_u32() as u16 & 0x80ff) | 0x3f00).to_le_bytes()).collect();
        PackedDense::from_bytes(DenseElement::Bf16, rows, columns, &halves)
    }
}

fn seeded(name: &str) -> StdRng {
    StdRng::seed_from_u64(name.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte)))
}
