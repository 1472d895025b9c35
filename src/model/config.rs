//! What the operations take from a model's configuration.

use crate::{
    formats::{Activation, ModelConfig, RopeScaling},
    ops::{bitnet::Gate, transformer::AttentionShape},
};

impl ModelConfig {
    pub(super) fn attention(&self) -> AttentionShape {
        AttentionShape { heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    pub(super) fn gate(&self) -> Gate {
        match self.activation {
            Activation::Relu2 => Gate::Relu2,
            Activation::Silu => Gate::Silu,
        }
    }

    /// The rotary frequency of every pair of a head: theta^(-2i/D), scaled as the configuration says; in `f32`, as transformers computes them.
    pub(super) fn rope_frequencies(&self) -> Vec<f32> {
        let frequency = |i: usize| 1.0 / self.rope_theta.powf((2 * i) as f32 / self.head_dim as f32);
        (0..self.head_dim / 2).map(|i| self.rope_scaling.apply(frequency(i))).collect()
    }
}

impl RopeScaling {
    fn apply(self, frequency: f32) -> f32 {
        match self {
            Self::None => frequency,
            Self::Linear(factor) => frequency / factor,
            Self::Llama3 { factor, low, high, context } => {
                let wavelength = std::f32::consts::TAU / frequency;
                if wavelength > context / low {
                    frequency / factor
                } else if wavelength < context / high {
                    frequency
                } else {
                    let smooth = (context / wavelength - low) / (high - low);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }
}
