//! Linear layers that are stored in floats.

use super::problem::{Problem, unsupported};
use crate::{
    ops::bitnet,
    weights::ternary::{packed::PackedTernary, scales::Scales},
};
use std::{path::Path, sync::Once};

/// What is made of linear layers in floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Masters {
    /// They are quantised, as BitNet's layers do it at every call: `quantization_mode` `online`.
    Online,
    /// They are taken as they are where they are ternary already, and else quantised: the model was trained so, or the caller wants it.
    Quantize,
    /// They are taken as they are where they are ternary already, and else refused.
    Refuse,
}

const REFUSED: &str = "is in floats of more than three values, and nothing in the file says that the model was trained for ternary weights: \
     quantised, it would be another model. LoadOptions::quantize, or with_quantize of an opened file, allows it (--quantize on the command line)";

impl Masters {
    /// The same, but that quantising is allowed.
    pub fn or_quantize(self, allowed: bool) -> Self {
        if allowed && self == Self::Refuse { Self::Quantize } else { self }
    }

    /// Says, once for a file, what its author may not have meant, after a matrix of floats was taken as it is.
    pub fn warn(self, said: &Once, path: &Path) {
        if self == Self::Refuse {
            let path = path.display();
            said.call_once(|| {
                log::warn!("{path}: the weights are ternary, in floats, and nothing says how activations are computed: here in 8 bits")
            });
        }
    }

    /// The ternary matrix of `weights`.
    pub fn matrix(self, weights: &[f32], rows: usize, columns: usize) -> Result<PackedTernary, Problem> {
        if self != Self::Online
            && let Some(matrix) = ternary(weights, rows, columns)
        {
            return Ok(matrix);
        }
        // Before they are refused, so that weights that are not finite are named as such.
        let quantized = bitnet::quantize_weights_cpu(weights, rows, columns).map_err(|e| format!("cannot be quantised: {e}"))?;
        if self == Self::Refuse {
            return unsupported(REFUSED);
        }
        if log::log_enabled!(log::Level::Info) {
            log::info!("quantising moves weights by {:.0} % of their norm", 100.0 * relative_error(weights, &quantized));
        }
        Ok(quantized)
    }
}

/// The matrix of floats with only the values -a, 0 and a. Some converters write ternary weights as floats; quantising those again by
/// their absmean would give a wrong scale.
fn ternary(weights: &[f32], rows: usize, columns: usize) -> Option<PackedTernary> {
    let scale = weights.iter().find(|&&w| w != 0.0).map_or(1.0, |w| w.abs());
    if !weights.iter().all(|&w| w == 0.0 || w.abs() == scale) {
        return None;
    }
    let code = |row: usize, column: usize| match weights[row * columns + column] {
        0.0 => 1,
        w if w < 0.0 => 0,
        _ => 2,
    };
    PackedTernary::from_codes(rows, columns, Scales::Tensor(scale), code).ok()
}

/// ‖W - βWq‖ / ‖W‖, and 0 for a matrix of zeros: what quantising `weights` to `matrix`, with one scale, moves of them.
pub(super) fn relative_error(weights: &[f32], matrix: &PackedTernary) -> f64 {
    use rayon::prelude::*;
    let scale = matrix.row_scales().first().copied().unwrap_or(1.0);
    let sums = weights.par_chunks(matrix.columns().max(1)).enumerate().map(|(row, weights)| {
        weights.iter().enumerate().fold((0f64, 0f64), |(off, all), (column, &w)| {
            let difference = f64::from(w) - f64::from(scale) * f64::from(matrix.value(row, column));
            (off + difference * difference, all + f64::from(w) * f64::from(w))
        })
    });
    let (off, all) = sums.reduce(|| (0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    if all > 0.0 { (off / all).sqrt() } else { 0.0 }
}
