//! Mixtures of experts: feed-forward blocks of which every token uses some.

use super::{
    format_error::{FormatError, unsupported},
    gguf::keys::Keys as GgufKeys,
    json::Keys,
};
use crate::limits::files::{MOST_EXPERTS, MOST_EXPERTS_USED};
use serde::{Deserialize, Serialize};

/// The name in transformers of the matrices of all experts: gate and up of the first, gate and up
/// of the second, and so on. `[experts · 2 · intermediate, hidden]`.
pub const GATE_UP: &str = "mlp.experts.gate_up_proj";
/// The output projections of all experts, `[experts · hidden, intermediate]`.
pub const DOWN: &str = "mlp.experts.down_proj";
/// The router's matrix, `[experts, hidden]`, of floats.
pub const ROUTER: &str = "mlp.gate";

/// How a token's experts are chosen: those of the largest router logits, of equal ones the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct MixtureOfExperts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token uses.
    pub used: usize,
    /// Whether the softmax is over the used experts only, so that their weights add up to 1. It is
    /// over all of them otherwise.
    pub normalized: bool,
    /// The most that gates may be, and ups and their negatives, where there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate_limit: Option<f32>,
}

impl MixtureOfExperts {
    /// Checks its numbers.
    pub(super) fn check(self) -> Result<(), String> {
        let Self { count, used, gate_limit, .. } = self;
        if let Some(limit) = gate_limit.filter(|limit| !(*limit > 0.0 && limit.is_finite())) {
            return Err(format!("the limit of gates is {limit}; a positive number is needed"));
        }
        if count == 0 || count > MOST_EXPERTS {
            return Err(format!("{count} experts; 1 to {MOST_EXPERTS} are supported"));
        }
        if used == 0 || used > count.min(MOST_EXPERTS_USED) {
            return Err(format!(
                "{used} of {count} experts are used by a token; 1 to {} are supported",
                count.min(MOST_EXPERTS_USED)
            ));
        }
        Ok(())
    }

    /// Reads the keys of config.json that transformers' Qwen3-MoE has: the experts, and their
    /// feed-forward size, which is `intermediate` where none is said.
    pub(super) fn read_json(
        json: Keys<'_>,
        intermediate: usize,
        (count, used, normalized): (usize, usize, bool),
    ) -> Result<(Self, usize), FormatError> {
        let sparse = json.get("decoder_sparse_step").is_none_or(|step| step.as_u64() == Some(1));
        let dense = json
            .get("mlp_only_layers")
            .is_some_and(|layers| layers.as_array().is_none_or(|layers| !layers.is_empty()));
        if !sparse || dense {
            return unsupported(
                "decoder_sparse_step or mlp_only_layers: layers without experts among those with experts are not supported",
            );
        }
        for key in ["shared_expert_intermediate_size", "num_shared_experts", "n_shared_experts"] {
            if let Some(size) = json.get(key).filter(|size| size.as_u64() != Some(0)) {
                return unsupported(format!("{key} is {size}: shared experts are not supported"));
            }
        }
        let intermediate = json.size("moe_intermediate_size", Some(intermediate))?;
        let key = "norm_topk_prob";
        let normalized = if json.get(key).is_some() { json.flag(key)? } else { normalized };
        let experts = Self {
            count: json.size("num_experts", Some(count))?,
            used: json.size("num_experts_per_tok", Some(used))?,
            normalized,
            gate_limit: None,
        };
        Ok((experts, intermediate))
    }

    /// Reads the keys of GGUF files: the experts, and their feed-forward size.
    pub(super) fn read_gguf(keys: GgufKeys<'_>) -> Result<(Self, usize), FormatError> {
        for key in ["expert_shared_count", "expert_shared_feed_forward_length"] {
            let (key, value) = keys.get(key);
            if value.is_some_and(|value| value.as_u64() != Some(0)) {
                return unsupported(format!("has {key}: shared experts are not supported"));
            }
        }
        // llama.cpp's numbers: 1 is softmax.
        let (key, gating) = keys.get("expert_gating_func");
        if gating.is_some_and(|gating| !matches!(gating.as_u64(), Some(0 | 1))) {
            return unsupported(format!("{key}: only softmax (1) is supported"));
        }
        let (key, scale) =
            (keys.get("expert_weights_scale").0, keys.float("expert_weights_scale", Some(1.0))?);
        if scale != 1.0 && scale != 0.0 {
            return unsupported(format!("{key} is {scale}; only 1 is supported"));
        }
        let intermediate = keys.size("expert_feed_forward_length", None)?;
        let experts = Self {
            count: keys.size("expert_count", None)?,
            used: keys.size("expert_used_count", None)?,
            normalized: true,
            gate_limit: None,
        };
        Ok((experts, intermediate))
    }
}
