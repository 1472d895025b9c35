//! Scaling of rotary frequencies, and reading it from config.json.

use super::{
    format_error::{FormatError, unsupported},
    json::Keys,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How rotary frequencies are scaled for a context longer than the one the model was trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not scaled.
    None,
    /// All frequencies are divided by this factor.
    Linear(f32),
    /// As in Llama 3.1: low frequencies are divided by `factor`, high ones kept, with a ramp
    /// between.
    Llama3 {
        /// Divides the low frequencies.
        factor: f32,
        /// Wavelengths above `context / low` count as low frequencies.
        low: f32,
        /// Wavelengths below `context / high` count as high frequencies.
        high: f32,
        /// The context length of the original training, in tokens.
        context: f32,
    },
    /// YaRN (Peng et al. 2023, arXiv:2309.00071), as transformers computes it: frequencies that
    /// turn less than `slow` times in the original context are divided by `factor`, those that turn
    /// more than `fast` times kept, with a ramp between by the pair's number; cosines and sines are
    /// multiplied.
    Yarn {
        /// Divides the low frequencies.
        factor: f32,
        /// The context length of the original training, in tokens.
        context: f32,
        /// Multiplies cosines and sines, and so queries and keys.
        attention: f32,
        /// Turns above which a frequency is kept.
        fast: f32,
        /// Turns below which a frequency is divided.
        slow: f32,
        /// Whether the ends of the ramp are rounded outwards to whole pairs.
        truncate: bool,
    },
    /// LongRoPE (Ding et al. 2024, arXiv:2402.13753): each frequency is divided by one of
    /// [`ModelConfig::rope_factors`](super::ModelConfig::rope_factors); cosines and sines are multiplied.
    LongRope {
        /// Multiplies cosines and sines, and so queries and keys.
        attention: f32,
    },
}

/// The method and its factor.
impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Linear(factor) => write!(f, "linear by {factor}"),
            Self::Llama3 { factor, .. } => write!(f, "Llama 3.1 by {factor}"),
            Self::Yarn { factor, .. } => write!(f, "YaRN by {factor}"),
            Self::LongRope { .. } => f.write_str("LongRoPE"),
        }
    }
}

impl RopeScaling {
    /// Checks that its parameters are in range.
    pub(super) fn check(&self) -> Result<(), String> {
        let sound = |value: f32| value > 0.0 && value.is_finite();
        match *self {
            Self::None => Ok(()),
            Self::Linear(factor) | Self::LongRope { attention: factor } if sound(factor) => Ok(()),
            Self::Llama3 { factor, low, high, context }
                if [factor, low, high, context].into_iter().all(sound) && low < high =>
            {
                Ok(())
            }
            Self::Yarn { factor, context, attention, fast, slow, .. }
                if [factor, context, attention, fast, slow].into_iter().all(sound) =>
            {
                Ok(())
            }
            _ => Err(format!("rotary scaling, {self}, has a parameter out of range")),
        }
    }
}

/// What config.json says of rotary embedding.
pub(super) struct Rope {
    pub theta: f32,
    pub scaling: RopeScaling,
    pub factors: Vec<f32>,
}

impl Rope {
    /// Reads either spelling: `rope_theta` and `rope_scaling`, or `rope_parameters` with
    /// everything. `theta` is the default, `context` the model's, in tokens.
    pub fn from_json(json: Keys<'_>, theta: f32, context: usize) -> Result<Self, FormatError> {
        let scaling = |key| {
            json.object(key)?.map(|scaling| Self::scaling(scaling, json, context)).transpose()
        };
        let (old, new) = (scaling("rope_scaling")?, scaling("rope_parameters")?);
        if let (Some(old), Some(new)) = (old, new)
            && old != new
        {
            return unsupported(format!(
                "rope_scaling and rope_parameters differ: {old} and {new}"
            ));
        }
        let scaling = new.or(old).unwrap_or(RopeScaling::None);
        if let RopeScaling::Llama3 { context, .. } | RopeScaling::Yarn { context, .. } = scaling {
            let key = "original_max_position_embeddings";
            let beside = json.float(key, context)?;
            if beside != context {
                return unsupported(format!(
                    "{key} is {beside}, but {context} in the rotary parameters"
                ));
            }
        }
        let theta = json.float("rope_theta", theta)?;
        let parameters = json.object("rope_parameters")?;
        let own =
            parameters.map_or(Ok(theta), |parameters| parameters.float("rope_theta", theta))?;
        if json.get("rope_theta").is_some() && own != theta {
            return unsupported(format!("rope_theta is {theta}, and {own} in rope_parameters"));
        }
        let theta = own;
        let lists = [json.object("rope_scaling")?, parameters].into_iter().flatten();
        let mut lists = lists
            .filter(|_| matches!(scaling, RopeScaling::LongRope { .. }))
            .map(|object| numbers(object, "short_factor"));
        let factors = lists.next().transpose()?.unwrap_or_default();
        if let Some(other) = lists.next().transpose()?
            && other != factors
        {
            return unsupported(
                "rope_scaling and rope_parameters have different values of `short_factor`",
            );
        }
        Ok(Self { theta, scaling, factors })
    }

    /// `json` is a part of `whole`, whose context `context` is, in tokens.
    fn scaling(
        json: Keys<'_>,
        whole: Keys<'_>,
        context: usize,
    ) -> Result<RopeScaling, FormatError> {
        if let Some((key, _)) = json.0.iter().find(|(_, value)| value.is_object()) {
            return unsupported(format!(
                "separate rotary parameters for `{key}` are not supported"
            ));
        }
        whole_heads(json)?;
        let kind = json.text("rope_type")?.or(json.text("type")?).unwrap_or("default");
        match kind {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear(json.needed("factor")?)),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: json.needed("factor")?,
                low: json.needed("low_freq_factor")?,
                high: json.needed("high_freq_factor")?,
                context: json.needed("original_max_position_embeddings")?,
            }),
            "yarn" => Self::yarn(json, context as f32).map_err(FormatError::from),
            "longrope" => Self::longrope(json, whole, context as f32),
            other => {
                let known = "`default`, `linear`, `llama3`, `yarn` and `longrope`";
                unsupported(format!("rotary scaling `{other}` is not supported; {known} are"))
            }
        }
    }

    /// There are factors for texts up to the original context, and others for longer ones. A text
    /// that grows beyond would change what its first tokens were, so only those are supported for
    /// which it makes no difference.
    fn longrope(json: Keys<'_>, whole: Keys<'_>, context: f32) -> Result<RopeScaling, FormatError> {
        // Older files have it beside the rotary parameters.
        let key = "original_max_position_embeddings";
        let original = if json.get(key).is_some() || whole.get(key).is_none() {
            json.needed(key)?
        } else {
            whole.needed(key)?
        };
        let beside = whole.float(key, original)?;
        if beside != original {
            return unsupported(format!(
                "{key} is {beside}, but {original} in the rotary parameters"
            ));
        }
        if numbers(json, "short_factor")? != numbers(json, "long_factor")? && context > original {
            return unsupported(format!(
                "longrope with other factors beyond {original} tokens is not supported"
            ));
        }
        let ratio = context / original;
        let factor = json.float("factor", ratio)?;
        // MiniCPM's own code and older transformers take the contexts, newer transformers the
        // factor.
        if json.get("attention_factor").is_none() && (factor - ratio).abs() > 1e-4 * ratio {
            return unsupported(format!(
                "longrope has the factor {factor} and contexts of {original} and {context} tokens, by which readers differ"
            ));
        }
        let usual = if factor <= 1.0 {
            1.0
        } else {
            (1.0 + f64::from(factor).ln() / f64::from(original).ln()).sqrt() as f32
        };
        Ok(RopeScaling::LongRope { attention: json.float("attention_factor", usual)? })
    }

    fn yarn(json: Keys<'_>, context: f32) -> Result<RopeScaling, String> {
        let original = json.float("original_max_position_embeddings", context)?;
        let factor = json.float("factor", context / original)?;
        let both = |mscale: f32, all: f32| {
            if mscale != 0.0 && all != 0.0 {
                yarn_attention(factor, mscale) / yarn_attention(factor, all)
            } else {
                yarn_attention(factor, 1.0)
            }
        };
        let attention = both(json.float("mscale", 0.0)?, json.float("mscale_all_dim", 0.0)?);
        // As in transformers, a bound of 0 is the default.
        let bound = |key, default: f32| {
            json.float(key, 0.0).map(|bound| if bound == 0.0 { default } else { bound })
        };
        Ok(RopeScaling::Yarn {
            factor,
            context: original,
            attention: json.float("attention_factor", attention)?,
            fast: bound("beta_fast", 32.0)?,
            slow: bound("beta_slow", 1.0)?,
            truncate: json.get("truncate").is_none() || json.flag("truncate")?,
        })
    }
}

/// A list of numbers.
fn numbers(json: Keys<'_>, key: &str) -> Result<Vec<f32>, String> {
    let list = json
        .get(key)
        .and_then(|list| list.as_array()?.iter().map(|x| x.as_f64().map(|x| x as f32)).collect());
    list.ok_or_else(|| format!("rotary scaling has no list of numbers {key}"))
}

/// What YaRN multiplies cosines and sines by, for frequencies that are divided by `factor`:
/// 0.1·mscale·ln(factor) + 1.
pub(super) fn yarn_attention(factor: f32, mscale: f32) -> f32 {
    if factor <= 1.0 {
        1.0
    } else {
        (0.1 * f64::from(mscale) * f64::from(factor).ln() + 1.0) as f32
    }
}

/// Refuses rotation of a part of every head.
pub(super) fn whole_heads(json: Keys<'_>) -> Result<(), FormatError> {
    match json.float("partial_rotary_factor", 1.0)? {
        1.0 => Ok(()),
        part => unsupported(format!("partial_rotary_factor {part} is not supported; 1 is")),
    }
}
