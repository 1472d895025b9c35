//! Whether packed weights are multiplied or divided by their stored scales.

use super::format_error::{FormatError, unsupported};
use crate::files::display;
use serde_json::Value;
use std::path::Path;

/// What a stored `weight_scale` means. A checkpoint's `quantization_config` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRule {
    /// The stored number is β: `linear_class` `autobitlinear` (BitNet b1.58 2B4T).
    Multiply,
    /// The stored number is 1 / β: `linear_class` `bitlinear`, or absent (Falcon3-1.58bit,
    /// Falcon-E, Llama3-8B-1.58).
    Divide,
}

/// The mean scale from which on it can only be 1 / β, and below whose inverse it can only be β.
/// Trained weights are some 1 / √columns in size, which is far from 1 either way.
const CLEAR_SCALE: f64 = 8.0;

/// What an error about a scale says where the rule is not known.
pub(super) const UNKNOWN: &str = "config.json has no quantization_config, which says whether weights are multiplied or divided by it. \
     ReadOptions::scale_rule says it (--weight-scale on the command line)";

/// Returns what config.json says of scales; none if it has no quantization_config.
pub(super) fn of_json(json: &Value) -> Result<Option<ScaleRule>, FormatError> {
    let quantization = &json["quantization_config"];
    if !(quantization.is_object() || quantization.is_null()) {
        return Err(format!("quantization_config is {quantization}; an object is needed").into());
    }
    let class = &quantization["linear_class"];
    match class.as_str() {
        _ if quantization.is_null() => Ok(None),
        Some("autobitlinear") => Ok(Some(ScaleRule::Multiply)),
        Some("bitlinear") => Ok(Some(ScaleRule::Divide)),
        None if class.is_null() => Ok(Some(ScaleRule::Divide)),
        _ => unsupported(format!(
            "linear_class {class} is not supported; \"autobitlinear\" and \"bitlinear\" are"
        )),
    }
}

/// Returns what stored scales mean, by their size: 1 / β is large, and β small. None if their mean is
/// near 1, or if there are none.
pub(super) fn of_scales(directory: &Path, scales: &[f32]) -> Option<ScaleRule> {
    let sum: f64 = scales.iter().map(|&scale| f64::from(scale).ln()).sum();
    let mean = (sum / scales.len() as f64).exp();
    let (rule, meaning) = match mean {
        mean if mean >= CLEAR_SCALE => (ScaleRule::Divide, "divided"),
        mean if mean <= 1.0 / CLEAR_SCALE => (ScaleRule::Multiply, "multiplied"),
        _ => return None,
    };
    log::info!(
        "{}: there is no quantization_config; weights are {meaning} by their scales, whose mean is {mean:.3}",
        display(directory)
    );
    Some(rule)
}
