//! Where a model's configuration and its first weights come from.

use crate::{
    error::{Error, Result},
    plan::{Kind, ParameterInfo, Plan},
    random::Random,
    ternary::{exact, float_weights, of_floats, scale},
};
use bitnet_wgpu::{
    formats::{Checkpoint, ModelConfig, ModelFile as _, TensorBytes},
    internals::{CheckpointInternals as _, FormatError, config_from_json, files::read},
    weights::PackedTernary,
};
use safetensors::Dtype;
use serde_json::Value;
use std::path::Path;

/// Most bytes of a config.json, as the library reads it.
const MOST_CONFIG: u64 = 16 << 20;

/// Standard deviation of initial weights where config.json has no `initializer_range`: that of
/// transformers.
const DEVIATION: f32 = 0.02;

/// A weight as a model directory has it.
pub enum Stored {
    Ternary(PackedTernary),
    Float(Vec<f32>),
}

/// A model's configuration, and its first weights if it has some.
#[derive(Debug)]
pub struct Source {
    config: ModelConfig,
    json: Value,
    weights: Option<Checkpoint>,
}

impl Source {
    /// Reads the config.json of a folder. The weights will be random.
    ///
    /// # Errors
    /// [`Error::Library`] for a file that is missing, damaged, or of a model that the library does
    /// not run.
    pub fn from_config(folder: impl AsRef<Path>) -> Result<Self> {
        let path = folder.as_ref().join("config.json");
        let bytes = read(&path, MOST_CONFIG)?;
        let json: Value = serde_json::from_slice(&bytes)
            .map_err(|error| FormatError::Damaged(format!("is not JSON: {error}")).at(&path))?;
        let config = config_from_json(&json).map_err(|problem| problem.at(&path))?;
        Ok(Self { config, json, weights: None })
    }

    /// Opens a model directory with safetensors, which training starts from: float weights, or
    /// ternary ones in any layout that the library reads. Of these, float weights are drawn that
    /// become the same ternary weights.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_weights(folder: impl AsRef<Path>) -> Result<Self> {
        let weights = Checkpoint::open(folder)?;
        let (config, json) = (weights.config().clone(), weights.config_json().clone());
        if weights.check_unused().is_err() {
            let problem = "has tensors that its config.json does not account for; remove them, or correct config.json";
            let path = weights.path().to_owned();
            return Err(Error::Checkpoint { path, problem: problem.into() });
        }
        Ok(Self { config, json, weights: Some(weights) })
    }

    /// Returns the model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the contents of config.json.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Returns the number of trained numbers.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model with a step that cannot be trained.
    pub fn parameters(&self) -> Result<u64> {
        Ok(Plan::new(&self.config)?.numbers())
    }

    /// Returns the first numbers of parameter number `index`. Random matrices are uniform, with a
    /// standard deviation of `initializer_range`; gains are 1.
    pub(crate) fn initial(
        &self,
        index: usize,
        info: &ParameterInfo,
        seed: u64,
    ) -> Result<Vec<f32>> {
        let Some(weights) = &self.weights else {
            let count = info.shape.iter().product();
            if info.kind == Kind::Gain {
                return Ok(vec![1.0; count]);
            }
            let mut random = Random::new(seed, index as u64);
            let bound = self.deviation() * 3f32.sqrt();
            return Ok((0..count).map(|_| random.signed() * bound).collect());
        };
        let tensor = weights.tensor(&stored(weights, &info.name))?;
        let ternary = match info.kind {
            Kind::Linear if !is_float(&tensor, info) => Some(packed(weights, info)?),
            Kind::Linear => exact(&numbers(weights, info)?, info.shape[0], info.shape[1])?,
            _ => None,
        };
        let Some(matrix) = ternary else {
            check_scales(weights, info)?;
            return numbers(weights, info);
        };
        let random = Random::new(seed, 1 << 61 | index as u64);
        Ok(float_weights(&matrix, one_scale(weights, info, &matrix)?, random))
    }

    /// Returns the ternary matrix of a linear layer, with one scale.
    pub(crate) fn ternary(
        &self,
        index: usize,
        info: &ParameterInfo,
        seed: u64,
    ) -> Result<PackedTernary> {
        let [rows, columns] = [info.shape[0], info.shape[1]];
        let Some(weights) = &self.weights else {
            return Ok(of_floats(&self.initial(index, info, seed)?, rows, columns)?);
        };
        let tensor = weights.tensor(&stored(weights, &info.name))?;
        let matrix = match is_float(&tensor, info) {
            true => {
                check_scales(weights, info)?;
                of_floats(&numbers(weights, info)?, rows, columns)?
            }
            false => packed(weights, info)?,
        };
        one_scale(weights, info, &matrix)?;
        Ok(matrix)
    }

    /// Returns a weight: of linear layers, the ternary matrix that inference has, or floats that it
    /// would refuse to make ternary.
    pub(crate) fn stored(&self, info: &ParameterInfo) -> Result<Stored> {
        let Some(weights) = &self.weights else {
            return Ok(Stored::Float(self.initial(0, info, 0)?));
        };
        if info.kind == Kind::Linear {
            let tensor = weights.tensor(&stored(weights, &info.name))?;
            match packed(weights, info) {
                Ok(matrix) => return Ok(Stored::Ternary(matrix)),
                Err(_) if is_float(&tensor, info) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Stored::Float(numbers(weights, info)?))
    }

    /// Returns where the weights are.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.weights.as_ref().map(Checkpoint::path)
    }

    fn deviation(&self) -> f32 {
        let range = self.json.get("initializer_range").and_then(Value::as_f64);
        range.map(|range| range as f32).filter(|x| *x > 0.0 && *x <= 1.0).unwrap_or(DEVIATION)
    }
}

/// Whether a tensor has a float for each weight.
fn is_float(tensor: &TensorBytes<'_>, info: &ParameterInfo) -> bool {
    tensor.shape == info.shape && matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Returns the float weights of a file.
fn numbers(weights: &Checkpoint, info: &ParameterInfo) -> Result<Vec<f32>> {
    let name = stored(weights, &info.name);
    let tensor = weights.tensor(&name)?;
    let other = |problem: String| Error::Checkpoint { path: weights.path().to_owned(), problem };
    if tensor.shape != info.shape {
        let problem = "has another shape than config.json says, or a layout that is not read";
        return Err(other(format!("`{name}` {problem}")));
    }
    let numbers = tensor.to_f32()?;
    match numbers.iter().all(|x| x.is_finite()) {
        true => Ok(numbers),
        false => Err(other(format!("`{name}` has numbers that are not finite"))),
    }
}

/// Returns the ternary weights of a file.
fn packed(weights: &Checkpoint, info: &ParameterInfo) -> Result<PackedTernary> {
    let name = info.name.strip_suffix(".weight").unwrap_or(&info.name);
    Ok(weights.linear(name, info.shape[0], info.shape[1])?)
}

/// Refuses float weights that are ternary with several scales: with one, they would be others.
fn check_scales(weights: &Checkpoint, info: &ParameterInfo) -> Result<()> {
    if info.kind != Kind::Linear {
        return Ok(());
    }
    match packed(weights, info) {
        Ok(matrix) => one_scale(weights, info, &matrix).map(drop),
        // Float weights as they are, which the quantizer of training makes ternary.
        Err(_) => Ok(()),
    }
}

/// Returns the scale of a matrix. The quantizer of training has one for each.
fn one_scale(weights: &Checkpoint, info: &ParameterInfo, matrix: &PackedTernary) -> Result<f32> {
    scale(matrix).ok_or_else(|| {
        let problem = format!(
            "`{}` has a scale for each row or group; one for the matrix is needed",
            info.name
        );
        Error::Checkpoint { path: weights.path().to_owned(), problem }
    })
}

/// The name of a tensor in a file: the usual one, or that of older checkpoints.
fn stored(weights: &Checkpoint, name: &str) -> String {
    let older = name
        .replace("self_attn.attn_sub_norm", "self_attn.inner_attn_ln")
        .replace("mlp.ffn_sub_norm", "mlp.ffn_layernorm");
    let names = weights.names();
    let has = |name: &str| names.iter().any(|other| other == name);
    if !has(name) && has(&older) { older } else { name.to_owned() }
}
