//! Layers of gated DeltaNet among layers of attention.

use crate::limits::files::MOST_SIZE;
use serde::{Deserialize, Serialize};
#[cfg(feature = "models")]
use std::ops::Range;

/// The longest convolution over time, in tokens.
const MOST_KERNEL: usize = 16;

/// The widest key or value head of a recurrent layer, and so the side of its state.
const MOST_HEAD: usize = 256;

/// A model of which some layers are recurrent: gated DeltaNet (Yang et al. 2024, arXiv:2412.06464).
/// The others are attention, whose output is gated and whose heads rotate in part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Hybrid {
    /// For every layer of the model, whether it is recurrent.
    pub recurrent: Vec<bool>,
    /// Tokens that the convolution of a recurrent layer sees, its own among them.
    pub kernel: usize,
    /// Query heads, and key heads, of recurrent layers.
    pub key_heads: usize,
    /// Value heads of recurrent layers, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Features of an attention head that rotate: its first ones.
    pub rotary: usize,
    /// Whether value head `h` reads key head `h % key_heads`, as in GGUF files. Otherwise it reads
    /// `h / (value_heads / key_heads)`.
    pub tiled: bool,
    /// Whether the output projection takes tiled value heads in the other order.
    pub regrouped: bool,
}

impl Hybrid {
    /// Features of all value heads.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Features that the convolution mixes over time: queries, keys and values.
    pub fn mixed(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.values()
    }

    /// The number of recurrent layers, and of the numbers that each keeps of a sequence.
    pub fn kept(&self) -> (usize, usize) {
        let layers = self.recurrent.iter().filter(|recurrent| **recurrent).count();
        (layers, self.key_dim * self.values() + (self.kernel - 1) * self.mixed())
    }

    /// The rotary frequency of a pair of features, 0 for those that do not rotate.
    pub fn frequency(&self, pair: usize, theta: f32) -> f32 {
        let rotates = 2 * pair < self.rotary;
        if rotates { 1.0 / theta.powf((2 * pair) as f32 / self.rotary as f32) } else { 0.0 }
    }

    /// That of a run of layers.
    #[cfg(feature = "models")]
    pub(crate) fn part(&self, run: Range<usize>) -> Self {
        Self { recurrent: self.recurrent[run].to_vec(), ..self.clone() }
    }

    /// The first layer of attention, of which `check` says that there is one.
    pub fn first_attention(&self) -> usize {
        self.recurrent.iter().position(|recurrent| !recurrent).unwrap_or(0)
    }

    /// Checks it for a model of this many layers, and attention heads of `head_dim`.
    pub(super) fn check(&self, layers: usize, head_dim: usize) -> Result<(), String> {
        if self.recurrent.len() != layers {
            return Err(format!(
                "layer_types has {} entries; the model has {layers} layers",
                self.recurrent.len()
            ));
        }
        if self.recurrent.iter().all(|recurrent| *recurrent) {
            return Err("no layer is attention; one is needed beside recurrent ones".into());
        }
        self.check_sizes(head_dim)
    }

    fn check_sizes(&self, head_dim: usize) -> Result<(), String> {
        let sizes = [
            ("the recurrent layers' convolution", self.kernel, 2, MOST_KERNEL),
            ("the number of recurrent key heads", self.key_heads, 1, MOST_SIZE),
            ("the number of recurrent value heads", self.value_heads, 1, MOST_SIZE),
            ("the recurrent key head size", self.key_dim, 1, MOST_HEAD),
            ("the recurrent value head size", self.value_dim, 1, MOST_HEAD),
            ("the number of rotary features", self.rotary, 2, head_dim),
        ];
        if let Some((what, size, least, most)) =
            sizes.into_iter().find(|(_, size, least, most)| !(least..=most).contains(&size))
        {
            return Err(format!("{what} is {size}; {least} to {most} are supported"));
        }
        if !self.rotary.is_multiple_of(2) {
            return Err(format!(
                "{} rotary features; rotary pairs need an even number",
                self.rotary
            ));
        }
        if !self.value_heads.is_multiple_of(self.key_heads) {
            return Err(format!(
                "{} recurrent value heads do not divide into {} key heads",
                self.value_heads, self.key_heads
            ));
        }
        if self.mixed() + self.values() > MOST_SIZE {
            return Err(format!(
                "the recurrent layers have {} features; {MOST_SIZE} are supported",
                self.mixed() + self.values()
            ));
        }
        Ok(())
    }
}
