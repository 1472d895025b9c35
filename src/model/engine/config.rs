//! What the operations take from a model's configuration.

use crate::{
    formats::{Activation, ModelConfig, RopeScaling},
    ops::{
        bitnet::Gate,
        transformer::{AttentionShape, rope_angles},
    },
};

impl ModelConfig {
    pub(crate) fn attention(&self) -> AttentionShape {
        AttentionShape { heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    pub(crate) fn gate(&self) -> Gate {
        match self.activation {
            Activation::Relu2 => Gate::Relu2,
            Activation::Silu => Gate::Silu,
            Activation::GeluTanh => Gate::GeluTanh,
        }
    }

    /// The rotary frequency of every pair of a head: theta^(-2i/D), scaled as the configuration
    /// says; in `f32`, as transformers computes them.
    pub(crate) fn rope_frequencies(&self) -> Vec<f32> {
        if let Some(rotary) = self.rotary {
            let dims = if rotary.local_only { 0 } else { rotary.dims };
            return part_frequencies(self.rope_theta, dims, self.head_dim);
        }
        let power = |i: usize| self.rope_theta.powf((2 * i) as f32 / self.head_dim as f32);
        let pairs = 0..self.head_dim / 2;
        if let Some(hybrid) = &self.hybrid {
            return pairs.map(|pair| hybrid.frequency(pair, self.rope_theta)).collect();
        }
        if let RopeScaling::LongRope { .. } = self.rope_scaling {
            return pairs
                .zip(&self.rope_factors)
                .map(|(i, factor)| 1.0 / (factor * power(i)))
                .collect();
        }
        let RopeScaling::Yarn { factor, .. } = self.rope_scaling else {
            return pairs.map(|i| self.rope_scaling.apply(1.0 / power(i))).collect();
        };
        let (low, high) = self.rope_scaling.yarn_ramp(self.head_dim, self.rope_theta);
        let kept = |i: usize| 1.0 - ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
        pairs
            .map(|i| 1.0 / (factor * power(i)) * (1.0 - kept(i)) + 1.0 / power(i) * kept(i))
            .collect()
    }

    /// The positions that a token sees in a layer, where these are not all.
    pub(crate) fn window(&self, layer: usize) -> Option<usize> {
        self.local.as_ref().filter(|local| local.layers[layer]).map(|local| local.window)
    }

    /// [`Self::rope_angles`] of layers that see a window, where there are some.
    pub(crate) fn local_angles(&self, positions: usize) -> Option<Vec<f32>> {
        let theta = self.local.as_ref()?.rope_theta;
        if let Some(rotary) = self.rotary {
            let frequencies = part_frequencies(theta, rotary.dims, self.head_dim);
            return Some(rope_angles(&frequencies, positions));
        }
        let frequency = |i: usize| 1.0 / theta.powf((2 * i) as f32 / self.head_dim as f32);
        Some(rope_angles(&(0..self.head_dim / 2).map(frequency).collect::<Vec<_>>(), positions))
    }

    /// What multiplies cosines and sines, where something does.
    pub(crate) fn rope_factor(&self) -> Option<f32> {
        match self.rope_scaling {
            RopeScaling::Yarn { attention, .. } | RopeScaling::LongRope { attention } => {
                Some(attention)
            }
            _ => None,
        }
    }

    /// The cosine and sine of every rotary angle, `[positions, head_dim / 2, 2]`, multiplied where
    /// the configuration says so.
    pub(crate) fn rope_angles(&self, positions: usize) -> Vec<f32> {
        let mut angles = rope_angles(&self.rope_frequencies(), positions);
        if let Some(factor) = self.rope_factor() {
            angles.iter_mut().for_each(|angle| *angle *= factor);
        }
        angles
    }
}

/// The frequencies of the pairs of a head of which `dims` features rotate; 0 where they do not.
fn part_frequencies(theta: f32, dims: usize, head_dim: usize) -> Vec<f32> {
    let frequency = |i: usize| match 2 * i < dims {
        true => 1.0 / theta.powf((2 * i) as f32 / dims as f32),
        false => 0.0,
    };
    (0..head_dim / 2).map(frequency).collect()
}

impl RopeScaling {
    fn apply(self, frequency: f32) -> f32 {
        match self {
            // By the pair's number, not its frequency alone: rope_frequencies does it.
            Self::None | Self::Yarn { .. } | Self::LongRope { .. } => frequency,
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

    /// The pairs of a head between which YaRN goes from what is kept to what is divided. Pair i of
    /// heads of `dim` turns context · theta^(-2i/dim) / 2π times in the original context.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn yarn(head_dim: usize, rope_theta: f32, rope_scaling: RopeScaling) -> ModelConfig {
        let json = serde_json::json!({
            "model_type": "qwen3", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
            "num_key_value_heads": 1, "vocab_size": 8, "head_dim": head_dim, "rope_theta": rope_theta,
        });
        ModelConfig { rope_scaling, ..ModelConfig::from_json(&json).unwrap() }
    }

    fn near(frequencies: &[f32], expected: &[(usize, f32)]) {
        for &(i, expected) in expected {
            assert!(
                (frequencies[i] / expected - 1.0).abs() < 1e-6,
                "pair {i}: {} is not {expected}",
                frequencies[i]
            );
        }
    }

    /// Numbers of transformers 5.23, before the ramp, at its ends, within, and behind it.
    #[test]
    fn frequencies_of_yarn_are_those_of_transformers() {
        let bonsai = |context| RopeScaling::Yarn {
            factor: 4.0,
            context,
            attention: 1.0,
            fast: 32.0,
            slow: 1.0,
            truncate: true,
        };
        let small = yarn(128, 1e6, bonsai(8192.0)).rope_frequencies();
        near(
            &small,
            &[
                (0, 1.0),
                (16, 0.031_622_78),
                (17, 0.025_482_967),
                (18, 0.019_629_285),
                (25, 0.002_932_201_4),
            ],
        );
        near(
            &small,
            &[
                (33, 0.000_237_012_43),
                (34, 0.000_162_345_41),
                (35, 0.000_130_824_77),
                (63, 3.102_344_4e-7),
            ],
        );
        let large = yarn(128, 1e6, bonsai(16_384.0)).rope_frequencies();
        near(
            &large,
            &[
                (20, 0.013_335_215),
                (25, 0.003_531_969_6),
                (36, 0.000_124_028_39),
                (37, 8.495_521e-5),
            ],
        );
        let cut = RopeScaling::Yarn {
            factor: 8.0,
            context: 256.0,
            attention: 0.9,
            fast: 16.0,
            slow: 2.0,
            truncate: false,
        };
        let cut = yarn(16, 1e4, cut);
        near(
            &cut.rope_frequencies(),
            &[
                (0, 1.0),
                (1, 0.287_408_6),
                (2, 0.042_441_797),
                (3, 0.003_952_847_3),
                (7, 3.952_847_3e-5),
            ],
        );
        // Cosines and sines are multiplied.
        assert_eq!(cut.rope_angles(1)[..4], [0.9, 0.0, 0.9, 0.0]);
    }
}
