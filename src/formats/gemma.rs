//! What Gemma 3's files say that those of other models do not.

use super::{
    json::Keys,
    problem::{Problem, unsupported},
};
use half::{bf16, f16};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
#[cfg(feature = "models")]
use std::ops::Range;

/// Layers that see a window of the text only, among others that see all of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LocalLayers {
    /// Of every layer of the model, is it one of them?
    pub layers: Vec<bool>,
    /// Positions that a token sees there, its own among them.
    pub window: usize,
    /// Base of the rotary frequencies there, which are not scaled.
    pub rope_theta: f32,
}

/// The base of layers that see a window, where files name none.
pub(super) const THETA: f32 = 10_000.0;

/// After how many layers one sees all of the text, where files do not say.
pub(super) const PERIOD: usize = 6;

impl LocalLayers {
    /// Those of a model of `count` layers, if it has some.
    pub(super) fn of(
        layers: Vec<bool>,
        count: usize,
        window: usize,
        rope_theta: f32,
    ) -> Result<Option<Self>, String> {
        check_count(&layers, count)?;
        Ok(layers.contains(&true).then_some(Self { layers, window, rope_theta }))
    }

    /// Those of a run of layers, if it has some.
    #[cfg(feature = "models")]
    pub(crate) fn part(&self, run: Range<usize>) -> Option<Self> {
        let layers = self.layers[run].to_vec();
        layers.contains(&true).then(|| Self { layers, ..self.clone() })
    }

    /// All but every `period`-th of `layers` layers.
    pub(super) fn but_every(period: usize, layers: usize) -> Vec<bool> {
        (1..=layers).map(|layer| !layer.is_multiple_of(period)).collect()
    }

    /// Those that config.json names, of `layers` layers.
    pub(super) fn from_json(json: Keys<'_>, layers: usize) -> Result<Option<Self>, Problem> {
        let kind = |kind: &Value| match kind.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => unsupported(format!(
                "layer_types has {kind}; \"full_attention\" and \"sliding_attention\" are supported"
            )),
        };
        let local = match json.get("layer_types") {
            Some(Value::Array(kinds)) => kinds.iter().map(kind).collect::<Result<_, _>>()?,
            Some(other) => return Err(format!("layer_types is {other}; a list is needed").into()),
            None => Self::but_every(json.size("sliding_window_pattern", Some(PERIOD))?, layers),
        };
        let theta = json.float("rope_local_base_freq", THETA)?;
        let own = json
            .object("rope_parameters")?
            .map(|kinds| kinds.object("sliding_attention"))
            .transpose()?
            .flatten();
        if let Some(kind) = own
            .map(|own| own.text("rope_type"))
            .transpose()?
            .flatten()
            .filter(|&kind| kind != "default")
        {
            return unsupported(format!(
                "rotary scaling `{kind}` of sliding_attention is not supported"
            ));
        }
        let of_own = own.map_or(Ok(theta), |own| own.float("rope_theta", theta))?;
        if json.get("rope_local_base_freq").is_some() && of_own != theta {
            return unsupported(format!(
                "rope_local_base_freq is {theta}, and the rope_theta of sliding_attention {of_own}"
            ));
        }
        Ok(Self::of(local, layers, json.size("sliding_window", Some(4096))?, of_own)?)
    }

    /// Checks it for a model of so many layers.
    pub(super) fn check(&self, layers: usize) -> Result<(), String> {
        check_count(&self.layers, layers)?;
        if self.window == 0 {
            return Err("the window is 0; a token sees itself at least".into());
        }
        if !(self.rope_theta >= 1.0 && self.rope_theta.is_finite()) {
            return Err(format!(
                "the rotary base of a window is {}; a finite number of at least 1 is needed",
                self.rope_theta
            ));
        }
        Ok(())
    }
}

fn check_count(said: &[bool], layers: usize) -> Result<(), String> {
    match said.len() == layers {
        true => Ok(()),
        false => Err(format!("of {layers} layers, {} are said to see a window or not", said.len())),
    }
}

/// config.json as other models have theirs: with the rotary parameters of layers that see all of
/// the text, where each kind of layers has its own.
pub(super) fn with_global_rope(json: Keys<'_>) -> Result<Map<String, Value>, Problem> {
    let mut flat = json.0.clone();
    if let Some(kinds) = json.object("rope_parameters")? {
        if let Some((key, _)) = kinds
            .0
            .iter()
            .find(|(key, _)| !matches!(key.as_str(), "full_attention" | "sliding_attention"))
        {
            return unsupported(format!(
                "rope_parameters has `{key}`; those of `full_attention` and `sliding_attention` are supported"
            ));
        }
        flat.insert(
            "rope_parameters".into(),
            kinds.object("full_attention")?.map_or(Value::Null, |own| own.0.clone().into()),
        );
    }
    Ok(flat)
}

/// Refuses what changes the model's graph.
pub(super) fn check_graph(json: Keys<'_>) -> Result<(), Problem> {
    for key in ["final_logit_softcapping", "attn_logit_softcapping"] {
        if json.get(key).is_some() {
            return unsupported(format!(
                "{key} is not supported: logits and scores are taken as they are"
            ));
        }
    }
    query_factor(json, 1).map(|_| ()).map_err(Problem::from)
}

/// What queries are multiplied by, beyond the usual 1/√head_dim: their scale is
/// 1/√query_pre_attn_scalar.
fn query_factor(json: Keys<'_>, head_dim: usize) -> Result<f32, String> {
    let key = "query_pre_attn_scalar";
    let scalar = json.float(key, 256.0)?;
    if scalar < 1.0 {
        return Err(format!("{key} is {scalar}; at least 1 is needed"));
    }
    Ok((head_dim as f32 / scalar).sqrt())
}

/// The gains of the norm `name`, as they multiply: those of Gemma's own norms are stored less 1,
/// those of linear layers as they are. The norm of queries scales them, too.
pub(super) fn gains(
    json: &Value,
    name: &str,
    mut stored: Vec<f32>,
    head_dim: usize,
) -> Result<Vec<f32>, String> {
    if name.ends_with("_proj.norm") {
        return Ok(stored);
    }
    stored.iter_mut().for_each(|gain| *gain += 1.0);
    if let (true, Some(json)) = (name.ends_with(".q_norm"), json.as_object()) {
        let factor = query_factor(Keys(json), head_dim)?;
        stored.iter_mut().for_each(|gain| *gain *= factor);
    }
    Ok(stored)
}

/// What the embedding's rows are multiplied by, √hidden, in the type that the embedding is stored
/// in, as transformers and MLX have it; none of GGUF.
pub(super) fn embedding_scale(hidden: usize, stored: Option<Dtype>) -> f32 {
    let scale = (hidden as f32).sqrt();
    match stored {
        Some(Dtype::BF16 | Dtype::U32) => bf16::from_f32(scale).to_f32(),
        Some(Dtype::F16) => f16::from_f32(scale).to_f32(),
        _ => scale,
    }
}
