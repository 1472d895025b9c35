//! Low-rank adapters of frozen ternary layers (LoRA, Hu et al. 2021, arXiv:2106.09685):
//! y = W·x + (alpha / rank)·B·A·x.

use crate::{
    error::{Error, Result},
    plan::{Kind, ParameterInfo, Plan},
    random::Random,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The beginning of tensors' names in PEFT.
const PREFIX: &str = "base_model.model.";

/// The largest rank: far beyond what layers of low rank are for.
const MOST_RANK: usize = 4096;

/// Adapters of low rank, which are trained in place of a model's weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Lora {
    /// Rows of A and columns of B.
    pub rank: usize,
    /// Factor of the product, times the rank.
    pub alpha: f32,
    /// Last parts of the names of the layers that have adapters, such as `q_proj`.
    pub targets: Vec<String>,
}

impl Lora {
    /// Returns adapters of this rank for all linear layers, with a factor of 2.
    pub fn new(rank: usize) -> Self {
        let all = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
        Self { rank, alpha: 2.0 * rank as f32, targets: all.map(str::to_owned).to_vec() }
    }

    /// Returns the factor of B·A.
    pub fn factor(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    /// # Errors
    /// [`Error::Setting`] for what cannot work.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=MOST_RANK).contains(&self.rank) {
            let accepted = format!("1 to {MOST_RANK} is supported");
            return Err(Error::setting("the rank of LoRA", self.rank, accepted));
        }
        if !(self.alpha > 0.0 && self.factor().is_finite()) {
            return Err(Error::setting(
                "the alpha of LoRA",
                self.alpha,
                "a positive number is needed",
            ));
        }
        Ok(())
    }

    /// Returns the trained parameters, and the numbers of A and B among them for each parameter of
    /// the model that has an adapter.
    ///
    /// # Errors
    /// [`Error::Setting`] for a target that no linear layer has.
    pub(crate) fn adapters(&self, plan: &Plan) -> Result<(Vec<ParameterInfo>, Vec<Option<usize>>)> {
        self.check()?;
        let name = |info: &ParameterInfo| layer(&info.name).rsplit('.').next().map(str::to_owned);
        let linear = || plan.parameters.iter().filter(|info| info.kind == Kind::Linear);
        let known: Vec<String> = linear().filter_map(name).collect();
        if self.targets.is_empty() || self.targets.iter().any(|target| !known.contains(target)) {
            let mut distinct = known.clone();
            distinct.sort();
            distinct.dedup();
            let accepted = format!("the linear layers are {}", distinct.join(", "));
            return Err(Error::setting("a target of LoRA", self.targets.join(", "), accepted));
        }
        let (mut trained, mut adapters) = (Vec::new(), Vec::new());
        for info in &plan.parameters {
            let is_target = name(info).is_some_and(|name| self.targets.contains(&name));
            if info.kind != Kind::Linear || !is_target {
                adapters.push(None);
                continue;
            }
            adapters.push(Some(trained.len()));
            let [rows, columns] = [info.shape[0], info.shape[1]];
            for (part, shape) in [("A", [self.rank, columns]), ("B", [rows, self.rank])] {
                let name = format!("{PREFIX}{}.lora_{part}.weight", layer(&info.name));
                let kind = Kind::Adapter;
                trained.push(ParameterInfo { name, shape: shape.to_vec(), kind });
            }
        }
        Ok((trained, adapters))
    }

    /// Returns the contents of PEFT's adapter_config.json.
    pub(crate) fn config(&self, base: &str) -> Value {
        json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base,
            "r": self.rank, "lora_alpha": self.alpha, "target_modules": self.targets,
            "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": false,
            "modules_to_save": null, "init_lora_weights": true, "inference_mode": true,
        })
    }
}

/// The name of a layer, which is that of its weights without `.weight`.
fn layer(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Returns the first numbers of trained parameter number `index`: A is uniform within
/// 1 / sqrt(columns), as in PEFT, and B is 0, so that the first step has the base model's loss.
pub fn initial(index: usize, info: &ParameterInfo, seed: u64) -> Vec<f32> {
    let count = info.shape.iter().product();
    if index % 2 == 1 {
        return vec![0.0; count];
    }
    let mut random = Random::new(seed, 1 << 62 | index as u64);
    let bound = 1.0 / (info.shape[1] as f32).sqrt();
    (0..count).map(|_| random.signed() * bound).collect()
}

/// Adds factor·B·A to a matrix; A is `[rank, columns]`, B `[rows, rank]`.
pub fn add_product(matrix: &mut [f32], a: &[f32], b: &[f32], rank: usize, factor: f32) {
    let columns = a.len() / rank.max(1);
    matrix.par_chunks_mut(columns.max(1)).zip(b.par_chunks(rank.max(1))).for_each(|(row, b)| {
        for (a, b) in a.chunks(columns).zip(b) {
            row.iter_mut().zip(a).for_each(|(w, a)| *w += factor * b * a);
        }
    });
}
