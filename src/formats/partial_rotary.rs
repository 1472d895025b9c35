//! Heads of which a part rotates.

use super::{
    format_error::{FormatError, unsupported},
    json::Keys,
    rope::RopeScaling,
};
use crate::{error::Result as CrateResult, weights::ternary::packed::PackedTernary};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The key of config.json.
const FACTOR: &str = "partial_rotary_factor";

/// The rotary embedding of the first features of a head only.
///
/// Files pair feature i with i + dims / 2. Readers move rows of queries and keys, and gains of heads,
/// so that pairs are half a head apart as elsewhere. The other pairs have a frequency of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PartialRotary {
    /// Features of a head that rotate.
    pub dims: usize,
    /// Whether layers that see the whole context do not rotate at all.
    pub local_only: bool,
}

impl PartialRotary {
    /// Checks it for heads of `head_dim`.
    pub(super) fn check(self, head_dim: usize, scaling: RopeScaling) -> Result<(), String> {
        let Self { dims, .. } = self;
        if dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
            return Err(format!(
                "{dims} features of heads of {head_dim} rotate; an even number up to that is needed"
            ));
        }
        match scaling {
            RopeScaling::None => Ok(()),
            _ => Err("rotary scaling of a part of a head is not supported".into()),
        }
    }

    /// The feature in a file of a feature here, in heads of `size`.
    fn stored(self, feature: usize, size: usize) -> usize {
        let (half, own) = (size / 2, self.dims / 2);
        match (feature < half, feature % half) {
            (true, pair) if pair < own => pair,
            (false, pair) if pair < own => own + pair,
            (true, pair) => own + pair,
            (false, pair) => half + pair,
        }
    }

    /// Moves the rows of queries and keys.
    pub(super) fn rows(
        self,
        name: &str,
        matrix: PackedTernary,
        size: usize,
    ) -> CrateResult<PackedTernary> {
        if !Self::rotates(name) || !matrix.rows().is_multiple_of(size) {
            return Ok(matrix);
        }
        matrix.reorder_rows(|row| row / size * size + self.stored(row % size, size))
    }

    /// Moves the gains of heads.
    pub(super) fn gains(self, name: &str, gains: Vec<f32>, size: usize) -> Vec<f32> {
        if !Self::rotates(name) || gains.len() != size {
            return gains;
        }
        (0..size).map(|feature| gains[self.stored(feature, size)]).collect()
    }

    /// Whether a tensor of this name has features of queries or keys.
    fn rotates(name: &str) -> bool {
        ["q_proj", "k_proj", "q_norm", "k_norm"]
            .iter()
            .any(|end| name.ends_with(&format!("self_attn.{end}")))
    }
}

/// The features that rotate, by the keys of config.json.
pub(super) fn dims(json: Keys<'_>, head_dim: usize, factor: f32) -> Result<usize, FormatError> {
    let beside = json.float(FACTOR, factor)?;
    let own = match json.object("rope_parameters")? {
        Some(parameters) => parameters.float(FACTOR, beside)?,
        None => beside,
    };
    if json.get(FACTOR).is_some() && own != beside {
        return unsupported(format!("{FACTOR} is {beside}, and {own} in rope_parameters"));
    }
    // As transformers, which drops a fraction.
    Ok((head_dim as f32 * own) as usize)
}

/// Returns config.json without the part of a head that rotates.
pub(super) fn without(json: Keys<'_>) -> Map<String, Value> {
    let mut all = json.0.clone();
    all.remove(FACTOR);
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(parameters) = all.get_mut(key).and_then(Value::as_object_mut) {
            parameters.remove(FACTOR);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_a_file_are_moved_once_each() {
        let rotary = PartialRotary { dims: 4, local_only: true };
        let stored: Vec<usize> = (0..10).map(|feature| rotary.stored(feature, 10)).collect();
        // Pairs (0, 2) and (1, 3) rotate; the others lie in order.
        assert_eq!(stored, [0, 1, 4, 5, 6, 2, 3, 7, 8, 9]);
        let all = PartialRotary { dims: 10, local_only: false };
        assert!((0..10).all(|feature| all.stored(feature, 10) == feature));
    }
}
