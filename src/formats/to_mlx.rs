//! Writes a model as MLX quantizes it: what [`mlx`](super::mlx) reads.

use super::{
    checkpoint::Checkpoint,
    safetensors::TensorBytes,
    tensors::layer_tensors,
    write::{Form, WrittenTensor, write_directory},
};
use crate::{
    error::{Error, Result},
    weights::ternary::{layout::transpose, packed::PackedTernary},
};
use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;

/// Columns of a group that MLX has kernels for, those that most models have first.
const GROUPS: [usize; 3] = [128, 64, 32];

/// Writes `checkpoint` to the directory `output` for [MLX](https://github.com/ml-explore/mlx-lm):
/// the linear layers of its blocks in integers of two bits, with a scale and a bias (its negative)
/// for every group of 128 columns, or of 64 or 32 where rows are no multiple of that. Scales have
/// the type of the embedding, to which they are rounded. Other tensors and the tokenizer's files
/// are copied. `progress` and the order of files are as for [`write_packed`](super::write_packed).
///
/// mlx-lm computes with float activations, also those of a model that was trained with int8 ones.
///
/// # Errors
/// [`Error::Io`], also if `output` holds a model and `force` is not set, or if `output` is the
/// input; [`Error::Format`] for weights that cannot be packed, and a scale that is beyond its type;
/// [`Error::Unsupported`] for BitNet models, whose form in mlx-lm is that of
/// [`write_packed`](super::write_packed), norms in linear layers, rows that are no multiple of 32
/// columns, and a model of MLX.
pub fn write_mlx(
    checkpoint: &Checkpoint,
    output: impl AsRef<Path>,
    force: bool,
    mut progress: impl FnMut(&WrittenTensor),
) -> Result<()> {
    let form = Affine::of(checkpoint)
        .map_err(|message| Error::Unsupported { path: checkpoint.path().to_owned(), message })?;
    write_directory(checkpoint, output.as_ref(), force, &form, &mut progress)
}

/// Integers of two bits: a weight is scale · integer - scale.
struct Affine {
    /// Columns of a group.
    group: usize,
    /// Of scales and biases.
    dtype: Dtype,
}

impl Affine {
    /// How a model is written.
    ///
    /// # Errors
    /// A message, for a model that MLX would not compute.
    fn of(checkpoint: &Checkpoint) -> std::result::Result<Self, String> {
        let config = checkpoint.config();
        if checkpoint.is_mlx() {
            return Err("is in MLX's format already".into());
        }
        if config.sub_norms || checkpoint.config_json()["model_type"] == "bitnet" {
            return Err("is a BitNet model, which mlx-lm reads in the packed format of transformers (formats::write_packed; --format packed on the command line)".into());
        }
        config.check_written()?;
        if config.projection_norms {
            return Err("has norms in linear layers, which mlx-lm does not have".into());
        }
        let tensors = layer_tensors(config);
        let columns = || tensors.matrices().into_iter().flatten().map(|matrix| matrix.columns);
        let fits = |group: &usize| columns().all(|columns| columns.is_multiple_of(*group));
        let Some(group) = GROUPS.into_iter().find(fits) else {
            let odd = columns().find(|columns| !columns.is_multiple_of(32)).unwrap_or_default();
            return Err(format!("has rows of {odd} columns; MLX needs whole groups of 32"));
        };
        let embedding = checkpoint.place_of("model.embed_tokens.weight");
        let dtype = match embedding.ok().and_then(|(file, name)| file.dtype(name)) {
            Some(dtype @ (Dtype::F32 | Dtype::F16)) => dtype,
            _ => Dtype::BF16,
        };
        Ok(Self { group, dtype })
    }

    /// The bytes of a scale, or of its negative.
    fn rounded(&self, scale: f32) -> Vec<u8> {
        match self.dtype {
            Dtype::F32 => scale.to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(scale).to_le_bytes().to_vec(),
            _ => bf16::from_f32(scale).to_le_bytes().to_vec(),
        }
    }

    /// One for each of MLX's groups, row by row.
    ///
    /// # Errors
    /// [`Error::Format`] for groups that begin within one of MLX's, and for a scale that is 0 or
    /// infinite in the type of the embedding.
    fn scales(&self, stored: &TensorBytes<'_>, matrix: &PackedTernary) -> Result<Vec<f32>> {
        let in_row = matrix.columns() / self.group;
        let own = matrix.group().unwrap_or(matrix.columns());
        if !own.is_multiple_of(self.group) {
            return Err(stored.unsupported(format!(
                "has a scale for every {own} columns; groups of {} are written",
                self.group
            )));
        }
        let (scales, of_row) = (matrix.row_scales(), matrix.columns().div_ceil(own));
        let scale = |row: usize, group: usize| scales[row * of_row + group * self.group / own];
        let all = (0..matrix.rows()).flat_map(|row| (0..in_row).map(move |group| (row, group)));
        let all: Vec<f32> = all.map(|(row, group)| scale(row, group)).collect();
        let lost = |scale: &f32| {
            self.dtype == Dtype::F16 && {
                let rounded = f16::from_f32(*scale);
                !rounded.is_finite() || (rounded == f16::ZERO && *scale != 0.0)
            }
        };
        match all.iter().find(|scale| lost(scale)) {
            Some(scale) => {
                Err(stored.error(format!("has the scale {scale}, which f16 does not have")))
            }
            None => Ok(all),
        }
    }
}

impl Form for Affine {
    fn parts(&self, rows: usize, columns: usize) -> Vec<(&'static str, Dtype, Vec<usize>)> {
        let groups = vec![rows, columns / self.group];
        vec![
            ("weight", Dtype::U32, vec![rows, columns / 16]),
            ("scales", self.dtype, groups.clone()),
            ("biases", self.dtype, groups),
        ]
    }

    fn bytes(&self, stored: &TensorBytes<'_>, matrix: &PackedTernary) -> Result<Vec<Vec<u8>>> {
        let scales = self.scales(stored, matrix)?;
        let words = (0..matrix.rows()).flat_map(|row| &matrix.row(row)[..matrix.columns() / 16]);
        Ok(vec![
            words.flat_map(|&word| transpose(word).to_le_bytes()).collect(),
            scales.iter().flat_map(|&scale| self.rounded(scale)).collect(),
            scales.iter().flat_map(|&scale| self.rounded(-scale)).collect(),
        ])
    }

    fn describe(&self, _: &Checkpoint, config: &mut Value) {
        if let Some(config) = config.as_object_mut() {
            config.remove("quantization_config");
        }
        config["quantization"] = json!({"group_size": self.group, "bits": 2, "mode": "affine"});
    }
}
