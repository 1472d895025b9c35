//! Settings of a run, and what is checked before anything is allocated.

use crate::{
    error::{Error, Result},
    lora::Lora,
};
use bitnet_wgpu::formats::ModelConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::f64::consts::PI;

/// The largest number of tokens in a micro-batch, `batch · context`. Kernels count numbers in 32
/// bits, and each token has thousands.
const MOST_TOKENS: usize = 1 << 22;
/// The largest number of steps: AdamW's power of a step is of 32 bits with a sign.
pub const MOST_STEPS: u64 = i32::MAX as u64;

/// What linear layers compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinearMode {
    /// Ternary weights and int8 activations, as BitNet's inference has them.
    Int8,
    /// Ternary weights and float activations.
    Float,
    /// Float weights and float activations: nothing is quantized, so all gradients are exact. Such a
    /// model cannot be exported.
    Dense,
}

/// The element type of products of linear layers, where these are not of integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// `f32`.
    #[default]
    F32,
    /// `f16`, on tensor cores where the device has them; sums, weights and all other steps are in
    /// `f32`. Gradients are those of the sum of losses until a step's end, since those of their mean
    /// are too small for `f16`. Needs a device with `f16`.
    Mixed,
}

/// How the learning rate changes after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Half a cosine, from the learning rate down to [`Settings::final_rate`] of it.
    Cosine,
    /// The learning rate, to the end.
    Constant,
}

/// Settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Settings {
    /// Number of steps, those that are skipped included.
    pub steps: u64,
    /// Windows in a micro-batch.
    pub batch: usize,
    /// Micro-batches of a step, whose gradients are added.
    pub accumulation: usize,
    /// Tokens of a window.
    pub context: usize,
    /// The largest learning rate.
    pub rate: f32,
    /// The last learning rate of a cosine, as a share of [`rate`](Self::rate).
    pub final_rate: f32,
    /// Steps in which the learning rate grows from 0 to [`rate`](Self::rate).
    pub warm_up: u64,
    /// The learning rate after the warm-up.
    pub schedule: Schedule,
    /// Weight decay of AdamW, for matrices and embeddings; norms have none.
    pub decay: f32,
    /// Decay rates of AdamW's means of gradients and of their squares.
    pub betas: (f32, f32),
    /// Largest norm of all gradients together.
    pub clip: f32,
    /// Seed of the initial weights and of the order of windows.
    pub seed: u64,
    /// What linear layers compute with.
    pub linear: LinearMode,
    /// The element type of products of linear layers.
    #[serde(default)]
    pub precision: Precision,
    /// Skipped steps in a row that end the run with an error.
    pub most_skipped: u32,
    /// Adapters that learn in place of the weights, if there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

impl Settings {
    /// Returns settings for this many steps of `batch` windows of `context` tokens, with int8
    /// activations, a learning rate of 10⁻³, and a warm-up of a tenth of the steps.
    pub fn new(steps: u64, batch: usize, context: usize) -> Self {
        Self {
            steps,
            batch,
            accumulation: 1,
            context,
            rate: 1e-3,
            final_rate: 0.1,
            warm_up: steps / 10,
            schedule: Schedule::Cosine,
            decay: 0.1,
            betas: (0.9, 0.95),
            clip: 1.0,
            seed: 0,
            linear: LinearMode::Int8,
            precision: Precision::F32,
            most_skipped: 10,
            lora: None,
        }
    }

    /// Checks the settings, alone and with a model.
    ///
    /// # Errors
    /// [`Error::Setting`] for the first one that cannot work.
    pub fn check(&self, config: &ModelConfig) -> Result<()> {
        self.check_sizes(config)?;
        self.check_numbers()?;
        if self.linear == LinearMode::Float && config.architecture == "bitnet" {
            let accepted = "int8 is supported, since a config.json of model_type bitnet means int8";
            return Err(Error::setting("the activation type", "float", accepted));
        }
        if self.lora.is_some() && self.linear == LinearMode::Dense {
            let accepted = "int8 or float is supported with LoRA, whose base is ternary";
            return Err(Error::setting("the activation type", "dense", accepted));
        }
        self.lora.as_ref().map_or(Ok(()), Lora::check)
    }

    fn check_sizes(&self, config: &ModelConfig) -> Result<()> {
        let most = config.context;
        if !(1..=most).contains(&self.context) {
            let accepted = format!("1 to {most} tokens are supported by the model");
            return Err(Error::setting("the context", self.context, accepted));
        }
        let sizes = [("the batch", self.batch), ("the accumulation", self.accumulation)];
        for (name, size) in sizes {
            if size == 0 || size > MOST_TOKENS / self.context {
                let accepted = format!("1 to {} are supported", MOST_TOKENS / self.context);
                return Err(Error::setting(name, size, accepted));
            }
        }
        if self.steps == 0 || self.steps > MOST_STEPS {
            let accepted = format!("1 to {MOST_STEPS} are supported");
            return Err(Error::setting("the number of steps", self.steps, accepted));
        }
        if self.warm_up > self.steps {
            let accepted = format!("at most the {} steps of the run are supported", self.steps);
            return Err(Error::setting("the warm-up", self.warm_up, accepted));
        }
        if self.most_skipped == 0 {
            let accepted = "at least 1 is needed";
            return Err(Error::setting("the number of skipped steps", 0, accepted));
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<()> {
        let positive = [("the learning rate", self.rate), ("the gradient norm limit", self.clip)];
        if let Some((name, value)) =
            positive.into_iter().find(|(_, x)| !(*x > 0.0 && x.is_finite()))
        {
            return Err(Error::setting(name, value, "a positive number is needed"));
        }
        let shares =
            [("the final learning rate", self.final_rate), ("the weight decay", self.decay)];
        if let Some((name, value)) = shares.into_iter().find(|(_, x)| !(0.0..=1.0).contains(x)) {
            return Err(Error::setting(name, value, "0 to 1 is supported"));
        }
        let betas = [("beta 1", self.betas.0), ("beta 2", self.betas.1)];
        if let Some((name, value)) = betas.into_iter().find(|(_, x)| !(0.0..1.0).contains(x)) {
            return Err(Error::setting(name, value, "0 to less than 1 is supported"));
        }
        Ok(())
    }

    /// Returns the learning rate of a step; the first step is 1.
    pub fn rate_at(&self, step: u64) -> f32 {
        let rate = f64::from(self.rate);
        if step <= self.warm_up {
            return (rate * step as f64 / self.warm_up as f64) as f32;
        }
        match self.schedule {
            Schedule::Constant => self.rate,
            Schedule::Cosine => {
                let all = self.steps.saturating_sub(self.warm_up).max(1) as f64;
                let done = ((step - self.warm_up) as f64 / all).min(1.0);
                let last = f64::from(self.final_rate);
                (rate * (last + (1.0 - last) * 0.5 * (1.0 + (PI * done).cos()))) as f32
            }
        }
    }

    /// Returns the tokens of a step.
    pub fn tokens(&self) -> usize {
        self.batch * self.accumulation * self.context
    }

    /// Returns the name of the first setting that changes what is computed and differs from
    /// `other`, those of a run that has taken `done` steps. The number of steps may differ, and with
    /// it a warm-up that is over: a run can be made longer.
    pub(crate) fn difference(&self, other: &Self, done: u64) -> Option<&'static str> {
        let is_longer = self.steps != other.steps;
        let same = [
            ("setting of LoRA", self.lora == other.lora),
            ("batch", self.batch == other.batch),
            ("accumulation", self.accumulation == other.accumulation),
            ("context", self.context == other.context),
            ("learning rate", self.rate == other.rate),
            ("final learning rate", self.final_rate == other.final_rate),
            (
                "warm-up",
                self.warm_up == other.warm_up
                    || is_longer && done >= self.warm_up.max(other.warm_up),
            ),
            ("schedule", self.schedule == other.schedule),
            ("weight decay", self.decay == other.decay),
            ("betas", self.betas == other.betas),
            ("gradient norm limit", self.clip == other.clip),
            ("seed", self.seed == other.seed),
            ("activation type", self.linear == other.linear),
            ("precision", self.precision == other.precision),
        ];
        same.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
    }
}

/// Checks that readers of config.json will compute the exported model as training does.
///
/// # Errors
/// [`Error::Setting`] for float activations where config.json is that of a BitNet model, by which
/// activations are quantized.
pub fn check_activations(json: &Value, linear: LinearMode) -> Result<()> {
    let is_bitnet = |name: &str| name.starts_with("BitNet") || name.starts_with("Bitnet");
    let architectures = json["architectures"].as_array().into_iter().flatten();
    let is_bitnet =
        json["weight_bits"] == 1 || architectures.filter_map(Value::as_str).any(is_bitnet);
    if is_bitnet && linear == LinearMode::Float {
        let accepted = "int8 is supported, since config.json is that of a BitNet model";
        return Err(Error::setting("the activation type", "float", accepted));
    }
    Ok(())
}
