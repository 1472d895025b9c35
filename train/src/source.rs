//! Where a model's configuration and its first weights come from.

use crate::{
    error::{Error, Result},
    plan::{Kind, ParameterInfo, Plan},
    random::Random,
};
use bitnet_wgpu::{
    formats::{Checkpoint, ModelConfig, ModelFile as _},
    internals::{CheckpointInternals as _, FormatError, config_from_json, files::read},
};
use serde_json::Value;
use std::path::Path;

/// Most bytes of a config.json, as the library reads it.
const MOST_CONFIG: u64 = 16 << 20;

/// Standard deviation of initial weights where config.json has no `initializer_range`: that of
/// transformers.
const DEVIATION: f32 = 0.02;

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

    /// Opens a folder with config.json and float weights in safetensors, which training starts
    /// from.
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
        let name = stored(weights, &info.name);
        let tensor = weights.tensor(&name)?;
        if tensor.shape != info.shape {
            let problem = format!(
                "`{name}` has another shape than config.json says, or is packed: float weights are needed"
            );
            return Err(Error::Checkpoint { path: weights.path().to_owned(), problem });
        }
        let numbers = tensor.to_f32()?;
        match numbers.iter().all(|x| x.is_finite()) {
            true => Ok(numbers),
            false => {
                let problem = format!("`{name}` has numbers that are not finite");
                Err(Error::Checkpoint { path: weights.path().to_owned(), problem })
            }
        }
    }

    fn deviation(&self) -> f32 {
        let range = self.json.get("initializer_range").and_then(Value::as_f64);
        range.map(|range| range as f32).filter(|x| *x > 0.0 && *x <= 1.0).unwrap_or(DEVIATION)
    }
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
