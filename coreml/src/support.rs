//! What a program can have of a model.

use crate::error::{Error, Result};
use bitnet_wgpu::{formats::ModelConfig, internals::Activation};

/// Checks that a program can compute a model of this configuration.
///
/// # Errors
/// [`Error::Unsupported`], which names what it cannot.
pub(crate) fn check(config: &ModelConfig) -> Result<()> {
    let missing = if config.local.is_some() {
        "attention to a sliding window"
    } else if config.hadamard.is_some() {
        "weights that are stored rotated"
    } else if config.hybrid.is_some() {
        "recurrent layers"
    } else if config.experts.is_some() {
        "mixtures of experts"
    } else if config.rotary.is_some() {
        "heads of which a part rotates"
    } else if !matches!(config.activation, Activation::Relu2 | Activation::Silu) {
        "an activation other than relu2 and silu"
    } else {
        return Ok(());
    };
    Err(Error::Unsupported { architecture: config.architecture.clone(), what: missing.into() })
}
