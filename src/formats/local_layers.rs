//! Layers that see a window of the context only.

use super::{
    format_error::{FormatError, unsupported},
    json::Keys,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
#[cfg(feature = "models")]
use std::ops::Range;

/// Layers that see a window of the text only, among others that see all of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LocalLayers {
    /// For every layer of the model, whether it is one of them.
    pub layers: Vec<bool>,
    /// Positions that a token sees there, its own among them.
    pub window: usize,
    /// Base of the rotary frequencies there, which are not scaled.
    pub rope_theta: f32,
}

impl LocalLayers {
    /// Returns for each layer whether `layer_types` of config.json says `own`, and not
    /// `full_attention`; none where config.json does not list them.
    pub(super) fn of_types(json: Keys<'_>, own: &str) -> Result<Option<Vec<bool>>, FormatError> {
        let kind = |kind: &Value| match kind.as_str() {
            Some("full_attention") => Ok(false),
            Some(kind) if kind == own => Ok(true),
            _ => unsupported(format!(
                "layer_types has {kind}; \"full_attention\" and \"{own}\" are supported"
            )),
        };
        match json.get("layer_types") {
            Some(Value::Array(kinds)) => kinds.iter().map(kind).collect::<Result<_, _>>().map(Some),
            Some(other) => Err(format!("layer_types is {other}; a list is needed").into()),
            None => Ok(None),
        }
    }

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

    /// Checks it for a model of this many layers.
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
        false => {
            Err(format!("layer_types has {} entries; the model has {layers} layers", said.len()))
        }
    }
}
