//! Weights that meet rotated activations.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The largest block: that of [`bitnet::hadamard`](crate::bitnet::hadamard).
const LARGEST: usize = 1024;

/// A model whose weights are stored rotated: what enters every linear layer of its blocks is
/// multiplied by signs and then by H / √block, in blocks of neighbors (H as
/// [`bitnet::hadamard`](crate::bitnet::hadamard) has it). The rotation spreads outliers, and leaves
/// a product as it was before the weights were rotated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Hadamard {
    /// Elements that are rotated together: a power of two up to 1024.
    pub block: usize,
    /// The signs, 1 or -1, of inputs by their width. None for those that are rotated as they are.
    pub signs: BTreeMap<usize, Vec<f32>>,
    /// Whether the input of the LM head is rotated too.
    pub head: bool,
    /// Whether the embedding's rows are rotated back, by H / √block and then by the signs of the
    /// hidden size.
    pub embedding: bool,
}

impl Hadamard {
    /// Checks that inputs of these widths, which are quantized or not, can be rotated so.
    pub(super) fn check(&self, widths: &[usize], quantized: bool) -> Result<(), String> {
        let Self { block, signs, .. } = self;
        if !block.is_power_of_two() || *block > LARGEST {
            return Err(format!(
                "a Hadamard rotation of blocks of {block}; a power of two up to {LARGEST} is supported"
            ));
        }
        if quantized {
            return Err("a Hadamard rotation of quantized activations is not supported".into());
        }
        if let Some(width) = widths.iter().find(|width| !width.is_multiple_of(*block)) {
            return Err(format!(
                "a Hadamard rotation of blocks of {block}, which {width} features are no multiple of"
            ));
        }
        for (width, signs) in signs {
            if signs.len() != *width || signs.iter().any(|sign| sign.abs() != 1.0) {
                return Err(format!(
                    "the signs of a Hadamard rotation of {width} features are not as many of 1 and -1"
                ));
            }
        }
        Ok(())
    }
}
