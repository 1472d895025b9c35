//! A model directory as transformers writes it: config.json and model.safetensors.

use super::{SafeTensors, TensorBytes, mapped};
use crate::{Error, PackedTernary, Result, Scales, bitnet};
use safetensors::Dtype;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a stored `weight_scale` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRule {
    /// It is β: `linear_class` `autobitlinear` (BitNet b1.58 2B4T).
    Multiply,
    /// It is 1 / β: `linear_class` `bitlinear`, or none (Falcon3-1.58bit, Falcon-E, Llama3-8B-1.58).
    Divide,
}

/// A BitNet checkpoint: its configuration and its tensors.
pub struct Checkpoint {
    tensors: SafeTensors,
    config: Value,
    rule: ScaleRule,
}

impl Checkpoint {
    /// Opens a model directory. Its model.safetensors is mapped, and must not be truncated while the checkpoint is in use. Files that are
    /// split into shards are not supported yet.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let path = directory.as_ref().join("config.json");
        let config = mapped::map(&path)?;
        let format = |message: String| Error::Format { path: path.clone(), message };
        let config: Value = serde_json::from_slice(&config).map_err(|e| format(e.to_string()))?;
        let class = &config["quantization_config"]["linear_class"];
        let rule = match class.as_str() {
            Some("autobitlinear") => ScaleRule::Multiply,
            Some("bitlinear") => ScaleRule::Divide,
            None if class.is_null() => ScaleRule::Divide,
            _ => return Err(format(format!("unknown linear_class {class}"))),
        };
        let tensors = SafeTensors::open(directory.as_ref().join("model.safetensors"))?;
        Ok(Self { tensors, config, rule })
    }

    /// config.json.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// What its weight scales mean.
    pub fn scale_rule(&self) -> ScaleRule {
        self.rule
    }

    /// All of its tensors.
    pub fn tensors(&self) -> &SafeTensors {
        &self.tensors
    }

    /// The names of its linear layers with packed weights: those that have a `weight_scale`.
    pub fn linears(&self) -> Vec<String> {
        let names = self.tensors.names().into_iter();
        let mut linears: Vec<_> = names.filter_map(|name| name.strip_suffix(".weight_scale").map(str::to_owned)).collect();
        linears.sort();
        linears
    }

    /// The weights of the linear layer `name` (`model.layers.0.mlp.down_proj`, say). Packed weights are taken as they are; float weights, of a
    /// checkpoint that is quantised as it is loaded, are quantised by their absmean.
    ///
    /// Packed rows come in fours, so a matrix whose rows do not is stored with some more: see [`Checkpoint::linear_with_rows`].
    ///
    /// # Errors
    /// [`Error::Format`] for a missing tensor, a wrong type or shape, code 3, or a scale that is not finite and positive.
    pub fn linear(&self, name: &str) -> Result<PackedTernary> {
        self.read(name, None)
    }

    /// [`Checkpoint::linear`] of a matrix that is known to have so many rows.
    pub fn linear_with_rows(&self, name: &str, rows: usize) -> Result<PackedTernary> {
        self.read(name, Some(rows))
    }

    fn read(&self, name: &str, rows: Option<usize>) -> Result<PackedTernary> {
        let weight_name = format!("{name}.weight");
        let weight = self.tensors.tensor(&weight_name)?;
        let (stored_rows, columns) = weight.matrix()?;
        if columns == 0 {
            return Err(weight.error("has no columns"));
        }
        if weight.dtype != Dtype::U8 {
            let same = rows.is_none_or(|rows| rows == stored_rows);
            let dense = if same { weight.to_f32() } else { Err(weight.error(format!("has {stored_rows} rows, not {rows:?}"))) };
            return bitnet::quantize_weights_cpu(&dense?, stored_rows, columns);
        }
        let rows = rows.unwrap_or(stored_rows.saturating_mul(4));
        if rows.div_ceil(4) != stored_rows {
            return Err(weight.error(format!("has {stored_rows} rows of four; that is not {rows}")));
        }
        let beta = self.beta(name)?;
        let matrix = PackedTernary::from_transformers(rows, columns, weight.bytes, Scales::Tensor(beta));
        matrix.map_err(|e| weight.error(format!("is no packed ternary matrix: {e}")))
    }

    fn beta(&self, name: &str) -> Result<f32> {
        let scale_name = format!("{name}.weight_scale");
        let stored: TensorBytes<'_> = self.tensors.tensor(&scale_name)?;
        let &[scale] = stored.to_f32()?.as_slice() else {
            return Err(stored.error(format!("has shape {:?}; one number is needed", stored.shape)));
        };
        let beta = match self.rule {
            ScaleRule::Multiply => scale,
            ScaleRule::Divide => 1.0 / scale,
        };
        if beta.is_finite() && beta > 0.0 { Ok(beta) } else { Err(stored.error(format!("is {scale}"))) }
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path: PathBuf = self.tensors.path().into();
        write!(f, "Checkpoint({}, {:?})", path.display(), self.rule)
    }
}
