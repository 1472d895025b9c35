//! What the operations take from a model's configuration.

use crate::{
    formats::{Activation, ModelConfig, RopeScaling},
    ops::{
        bitnet::Gate,
        transformer::{AttentionShape, rope_angles},
    },
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
        let power = |i: usize| self.rope_theta.powf((2 * i) as f32 / self.head_dim as f32);
        let pairs = 0..self.head_dim / 2;
        let RopeScaling::Yarn { factor, .. } = self.rope_scaling else {
            return pairs.map(|i| self.rope_scaling.apply(1.0 / power(i))).collect();
        };
        let (low, high) = self.rope_scaling.yarn_ramp(self.head_dim, self.rope_theta);
        let kept = |i: usize| 1.0 - ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
        pairs.map(|i| 1.0 / (factor * power(i)) * (1.0 - kept(i)) + 1.0 / power(i) * kept(i)).collect()
    }

    /// What multiplies cosines and sines, where something does.
    pub(super) fn rope_factor(&self) -> Option<f32> {
        match self.rope_scaling {
            RopeScaling::Yarn { attention, .. } => Some(attention),
            _ => None,
        }
    }

    /// The cosine and sine of every rotary angle, `[positions, head_dim / 2, 2]`, multiplied where the configuration says so.
    pub(super) fn rope_angles(&self, positions: usize) -> Vec<f32> {
        let mut angles = rope_angles(&self.rope_frequencies(), positions);
        if let Some(factor) = self.rope_factor() {
            angles.iter_mut().for_each(|angle| *angle *= factor);
        }
        angles
    }
}

impl RopeScaling {
    fn apply(self, frequency: f32) -> f32 {
        match self {
            // By the pair's number, not its frequency alone: rope_frequencies does it.
            Self::None | Self::Yarn { .. } => frequency,
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

    /// The pairs of a head between which YaRN goes from what is kept to what is divided. Pair i of heads of `dim` turns
    /// context · theta^(-2i/dim) / 2π times in the original context.
    fn yarn_ramp(self, dim: usize, theta: f32) -> (f32, f32) {
        let Self::Yarn { context, fast, slow, truncate, .. } = self else { return (0.0, 0.0) };
        let pair = |turns: f32| {
            let ratio = f64::from(context) / (f64::from(turns) * std::f64::consts::TAU);
            dim as f64 * ratio.ln() / (2.0 * f64::from(theta).ln())
        };
        let (low, high) = (pair(fast), pair(slow));
        let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0) as f32, high.min(dim as f64 - 1.0) as f32);
        (low, if low == high { high + 0.001 } else { high })
    }
}
