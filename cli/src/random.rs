//! A model with random weights, to time shapes of which there are no weights at hand.

use bitnet_wgpu::{
    Result,
    formats::{ModelConfig, ModelFile},
    model::Model,
    weights::{DenseElement, PackedDense, PackedTernary, Scales},
};

/// Columns that share a scale in Ternary-Bonsai.
const GROUP: usize = 128;

/// Returns a fixed prompt of `tokens` tokens from a model's vocabulary.
pub fn prompt_of(model: &Model, tokens: usize) -> Vec<u32> {
    (0..tokens.max(1) as u64).map(|i| (i * 7919 % model.config().vocab as u64) as u32).collect()
}

/// Shapes that are built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// BitNet b1.58 2B4T.
    #[value(name = "bitnet-2b4t")]
    BitNet2B4T,
    /// Ternary-Bonsai-1.7B.
    #[value(name = "ternary-bonsai-1.7b")]
    Bonsai1B7,
    /// Ternary-Bonsai-8B.
    #[value(name = "ternary-bonsai-8b")]
    Bonsai8B,
}

impl Shape {
    /// Its config.json.
    pub fn config(self) -> &'static str {
        match self {
            Self::BitNet2B4T => BITNET_2B4T,
            Self::Bonsai1B7 => BONSAI_1B7,
            Self::Bonsai8B => BONSAI_8B,
        }
    }
}

const BITNET_2B4T: &str = r#"{
    "model_type": "bitnet", "hidden_act": "relu2", "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 30,
    "num_attention_heads": 20, "num_key_value_heads": 5, "vocab_size": 128256, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": true, "bos_token_id": 128000, "eos_token_id": 128001
}"#;

const BONSAI_1B7: &str = r#"{
    "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 32768,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true, "eos_token_id": 151645
}"#;

const BONSAI_8B: &str = r#"{
    "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 65536,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16384},
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false, "eos_token_id": 151645
}"#;

/// Random ternary layers, and a random embedding in bf16. Where activations are floats, all is
/// ternary per group of 128 columns, as in Ternary-Bonsai.
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
            let values: Vec<i8> =
                (0..rows * columns).map(|_| ((rng.next() >> 32) % 3) as i8 - 1).collect();
            return PackedTernary::from_values(rows, columns, &values, self.scales(rows, columns));
        }
        // Each 2-bit code is 1 with probability 1/2, else 0 or 2.
        let word = |r: u64| {
            let (ones, high) = (r as u32 & 0x5555_5555, (r >> 32) as u32 & 0x5555_5555);
            ones | (high & !ones) << 1
        };
        let words = (0..rows * columns / 16).map(|_| word(rng.next())).collect();
        PackedTernary::from_words(rows, columns, words, self.scales(rows, columns))
    }

    fn ternary_table(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Option<PackedTernary>> {
        (!self.0.quantized_activations).then(|| self.linear(name, rows, columns)).transpose()
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        // A state that grew with every token would soon be infinite.
        let decays = name.ends_with(".A_log");
        Ok(vec![if decays { -1.0 } else { 1.0 }; len])
    }

    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense> {
        let mut rng = seeded(name);
        // bf16 numbers with magnitudes from 0.5 to 2 and either sign.
        let mut bytes = vec![0u8; 2 * rows * columns];
        for four in bytes.chunks_mut(8) {
            let numbers = (rng.next() & 0x80ff_80ff_80ff_80ff) | 0x3f00_3f00_3f00_3f00;
            four.copy_from_slice(&numbers.to_le_bytes()[..four.len()]);
        }
        PackedDense::from_bytes(DenseElement::Bf16, rows, columns, &bytes)
    }
}

impl RandomModel {
    fn scales(&self, rows: usize, columns: usize) -> Scales {
        if self.0.quantized_activations {
            return Scales::Tensor(0.02);
        }
        Scales::Groups { size: GROUP, scales: vec![0.02; rows * columns.div_ceil(GROUP)] }
    }
}

/// SplitMix64 (Steele et al. 2014): billions of weights take seconds, in development builds too.
struct Mixer(u64);

impl Mixer {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

fn seeded(name: &str) -> Mixer {
    Mixer(
        name.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte))),
    )
}
