//! A model directory as a model.

use super::{
    checkpoint::Checkpoint,
    config::ModelConfig,
    expert_tensors::{own_names, projections, stack},
    model_file::ModelFile,
    tensors::{self, linear_names, tensor_names},
};
use crate::{
    error::Result,
    weights::{
        dense::{DenseElement, PackedDense},
        ternary::packed::PackedTernary,
    },
};
use safetensors::Dtype;
use std::collections::HashSet;

impl ModelFile for Checkpoint {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn check_unused(&self) -> Result<()> {
        let (names, mut used) = (tensor_names(&self.config), HashSet::new());
        if !names.iter().all(|name| self.contains(name)) {
            // What is missing says more; reading it names it.
            return Ok(());
        }
        let count = self.config.experts.map_or(0, |experts| experts.count);
        let own = |name: &String| own_names(name, count).map(Vec::from_iter);
        used.extend(
            names
                .iter()
                .filter_map(own)
                .flatten()
                .flat_map(|own| ["weight", "weight_scale"].map(|part| format!("{own}.{part}"))),
        );
        used.extend(linear_names(&self.config).map(|name| format!("{name}.weight_scale")));
        for name in names {
            if projections(&name).is_some() {
                used.insert(name);
                continue;
            }
            let stored = self.stored(&name);
            if self.mlx.is_some() && self.shards.dtype(&stored) == Some(Dtype::U32) {
                used.extend(["scales", "biases"].map(|part| format!("{name}.{part}")));
            }
            used.insert(stored);
        }
        // Copies that older transformers wrote: of the embedding, and of rotary frequencies.
        let copy = |name: &str| {
            name.ends_with(".rotary_emb.inv_freq")
                || self.config.tied_head && name == "lm_head.weight"
        };
        let unused = self.names().into_iter().filter(|name| !used.contains(name) && !copy(name));
        tensors::unused(unused).map_err(|problem| problem.at(&self.directory))
    }

    fn contains(&self, name: &str) -> bool {
        let count = self.config.experts.map_or(0, |experts| experts.count);
        if let Some(mut own) = own_names(name, count) {
            return self.shards.contains(name)
                || own.all(|own| self.shards.contains(&format!("{own}.weight")));
        }
        self.shards.contains(&self.stored(name))
    }

    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        match projections(name) {
            Some(_) => self.experts(name, rows, columns),
            None => self.matrix_of(name, rows, columns),
        }
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(&self.stored(name))?;
        let mut gains = match tensor.shape {
            &[found] if found == len => tensor.to_f32()?,
            shape => return Err(tensor.error(format!("has shape {shape:?}; [{len}] is needed"))),
        };
        if self.config.family().gains_less_one && !is_whole(name) {
            gains.iter_mut().for_each(|gain| *gain += 1.0);
        }
        if name.ends_with(".A_log") {
            gains.iter_mut().for_each(|gain| *gain = -gain.exp());
        }
        tensors::finite(self.config.rotary_gains(name, gains), |what| tensor.error(what))
    }

    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense> {
        let tensor = self.tensor(&self.stored(name))?;
        if self.size(&tensor)? != (rows, columns) {
            return Err(tensor
                .error(format!("has shape {:?}; [{rows}, {columns}] is needed", tensor.shape)));
        }
        if let Some(affine) = self.affine_of(&tensor) {
            let matrix =
                self.with_groups(name, &tensor, |matrix| affine.dense(matrix, rows, columns))?;
            return tensors::finite_matrix(matrix, |what| tensor.error(what));
        }
        let element = match tensor.dtype {
            Dtype::F32 => DenseElement::F32,
            Dtype::F16 => DenseElement::F16,
            Dtype::BF16 => DenseElement::Bf16,
            other => {
                return Err(tensor.unsupported(format!("is {other}; F32, BF16 or F16 is needed")));
            }
        };
        let matrix = PackedDense::from_bytes(element, rows, columns, &tensor.bytes)
            .map_err(|e| tensor.error(e))?;
        tensors::finite_matrix(matrix, |what| tensor.error(what))
    }

    fn ternary_table(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Option<PackedTernary>> {
        let tensor = self.tensor(&self.stored(name))?;
        let Some(affine) = self.affine_of(&tensor) else { return Ok(None) };
        if self.size(&tensor)? != (rows, columns) {
            return Err(tensor
                .error(format!("has shape {:?}; [{rows}, {columns}] is needed", tensor.shape)));
        }
        // With other biases, or with the integer 3, it is none.
        Ok(self.with_groups(name, &tensor, |matrix| affine.ternary(matrix, rows, columns)).ok())
    }
}

impl Checkpoint {
    /// Reads a stack of all experts' matrices, `[rows, columns]`, of which each expert has
    /// `rows / experts`.
    ///
    /// # Errors
    /// As [`Checkpoint::ternary`], of each matrix.
    fn experts(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
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

/// Returns whether a vector of a family whose gains are stored less 1 is stored as it is: the norms
/// of linear layers, and what recurrent layers have.
fn is_whole(name: &str) -> bool {
    name.ends_with("_proj.norm") || name.contains(".linear_attn.")
}
