//! Experts' matrices in files: of each expert by itself, or of all experts in one tensor.

use super::experts::{DOWN, GATE_UP};
use crate::{error::Result, weights::ternary::packed::PackedTernary};

/// The projections of a stack of all experts' matrices, by its name in transformers: where their
/// names begin (`model.layers.0.mlp.`), and what they are of an expert, in order.
pub(super) fn projections(name: &str) -> Option<(&str, &'static [&'static str])> {
    let before = |end: &str| name.strip_suffix(end).filter(|layer| layer.ends_with('.'));
    let both: [(&str, &[&str]); 2] = [(GATE_UP, &["gate", "up"]), (DOWN, &["down"])];
    both.into_iter().find_map(|(end, parts)| Some((before(end)?, parts)))
}

/// The names of each expert's matrices in a directory, without `.weight`.
pub(super) fn own_names(name: &str, count: usize) -> Option<impl Iterator<Item = String>> {
    let (layer, parts) = projections(name)?;
    let of = move |expert: usize| {
        parts.iter().map(move |part| format!("{layer}mlp.experts.{expert}.{part}_proj"))
    };
    Some((0..count).flat_map(of))
}

/// The names of all experts' matrices in a GGUF file, without `.weight`.
pub(super) fn gguf_names(name: &str) -> Option<Vec<String>> {
    let (layer, parts) = projections(name)?;
    let layer = layer.strip_prefix("model.layers.")?;
    Some(parts.iter().map(|part| format!("blk.{layer}ffn_{part}_exps")).collect())
}

/// Stacks matrices, one after another.
pub(super) fn stack(parts: &[PackedTernary]) -> Result<PackedTernary> {
    PackedTernary::concat(&parts.iter().collect::<Vec<_>>())
}
