//! Experts' matrices in files: of each expert by itself, or of all experts in one tensor.

use super::{
    checkpoint::Checkpoint,
    experts::{DOWN, GATE_UP},
    gguf::model::GgufModel,
};
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

fn stack(parts: &[PackedTernary]) -> Result<PackedTernary> {
    PackedTernary::concat(&parts.iter().collect::<Vec<_>>())
}

impl Checkpoint {
    /// Reads a stack of all experts' matrices, `[rows, columns]`, of which each expert has
    /// `rows / experts`.
    ///
    /// # Errors
    /// As [`Checkpoint::ternary`], of each matrix.
    pub(super) fn experts(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        let count = self.config().experts.map_or(1, |experts| experts.count);
        let halves = projections(name).map_or(1, |(_, parts)| parts.len());
        let rows = rows / count / halves;
        if !self.has_tensor(name) {
            let names = own_names(name, count).into_iter().flatten();
            let read = |own: String| self.matrix_of(&own, rows, columns);
            return stack(&names.map(read).collect::<Result<Vec<_>>>()?);
        }
        // As transformers holds them in memory.
        let all = self.tensor(name)?;
        if all.shape != [count, halves * rows, columns] {
            return Err(all.error(format!(
                "has shape {:?}; [{count}, {}, {columns}] is needed",
                all.shape,
                halves * rows
            )));
        }
        let shape = [rows, columns];
        let parts = (0..count * halves).map(|part| {
            let own = all.part(part, &shape);
            self.of_floats(name, &own, rows)
        });
        stack(&parts.collect::<Result<Vec<_>>>()?)
    }
}

impl GgufModel {
    /// Reads a stack of all experts' matrices, `[rows, columns]`, of which each expert has
    /// `rows / experts`.
    ///
    /// # Errors
    /// As [`ModelFile::linear`](super::ModelFile::linear), of each matrix.
    pub(super) fn experts(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        let count = self.config().experts.map_or(1, |experts| experts.count);
        let stored = gguf_names(name).unwrap_or_default();
        let shape = [rows / count / stored.len().max(1), columns];
        let mut projections = Vec::new();
        for stored in &stored {
            let all = self.file().tensor(&format!("{stored}.weight"))?;
            if all.shape != [count, shape[0], columns] {
                return Err(all.error(format!(
                    "has shape {:?}; [{count}, {}, {columns}] is needed",
                    all.shape, shape[0]
                )));
            }
            let beside = format!("{stored}.scale");
            if self.file().contains(&beside) {
                let problem = "is a scale of experts beside their matrices, which is not supported";
                return Err(self.file().tensor(&beside)?.unsupported(problem));
            }
            let read = |expert: usize| self.matrix_in(&all.part(expert, &shape)?);
            projections.push((0..count).map(read).collect::<Result<Vec<_>>>()?);
        }
        let of = |expert: usize| projections.iter().map(move |parts| &parts[expert]);
        PackedTernary::concat(&(0..count).flat_map(of).collect::<Vec<_>>())
    }
}
