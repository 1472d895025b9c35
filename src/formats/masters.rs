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
    /// They are taken as they are where they are ternary already, with one scale or with one for every [`GROUP`] columns, and else refused.
    Refuse,
    /// As `Refuse`, but that the caller wants others quantised.
    Allow,
}

/// Columns that share a scale where float weights are ternary in groups: Ternary-Bonsai's.
const GROUP: usize = 128;

const REFUSED: &str = "and nothing in the file says that the model was trained for ternary weights: \
     quantised, it would be another model. LoadOptions::quantize, or with_quantize of an opened file, allows it (--quantize on the command line)";

impl Masters {
    /// The same, but that quantising is allowed.
    pub fn or_quantize(self, allowed: bool) -> Self {
        if allowed && self == Self::Refuse { Self::Allow } else { self }
    }

    /// Says, once for a file, what its author may not have meant, after a matrix of floats was taken as it is.
    pub fn warn(self, said: &Once, path: &Path, quantized_activations: bool) {
        if self == Self::Refuse && quantized_activations {
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
        let grouped = match self {
            Self::Refuse | Self::Allow => ternary_groups(weights, rows, columns),
            Self::Online | Self::Quantize => Err(String::new()),
        };
        let misfit = match grouped {
            Ok(matrix) => return Ok(matrix),
            Err(misfit) => misfit,
        };
        // Before they are refused, so that weights that are not finite are named as such.
        let quantized = bitnet::quantize_weights_cpu(weights, rows, columns).map_err(|e| format!("cannot be quantised: {e}"))?;
        if self == Self::Refuse {
            return unsupported(format!("is in floats of more than three values, {misfit}, {REFUSED}"));
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

/// The matrix of floats with only the values -a, 0 and a in every [`GROUP`] columns of a row.
///
/// # Errors
/// What does not fit.
fn ternary_groups(weights: &[f32], rows: usize, columns: usize) -> Result<PackedTernary, String> {
    let groups = columns.div_ceil(GROUP).max(1);
    let of = |i: usize| {
        let (row, first) = (i / groups, i % groups * GROUP);
        &weights[row * columns + first..row * columns + columns.min(first + GROUP)]
    };
    let scale = |i: usize| of(i).iter().find(|&&w| w != 0.0).map_or(0.0, |w| w.abs());
    let other = |i: usize| of(i).iter().find(|&&w| w != 0.0 && w.abs() != scale(i)).copied();
    let count = if columns == 0 { 0 } else { rows * groups };
    if let Some((i, other)) = (0..count).find_map(|i| Some((i, other(i)?))) {
        let (row, first) = (i / groups, i % groups * GROUP);
        let last = columns.min(first + GROUP) - 1;
        return Err(format!("also in groups of {GROUP} columns (row {row} has {} and {other} in columns {first} to {last})", scale(i)));
    }
    let code = |row: usize, column: usize| match weights[row * columns + column] {
        0.0 => 1,
        w if w < 0.0 => 0,
        _ => 2,
    };
    let scales = Scales::Groups { size: GROUP, scales: (0..count).map(scale).collect() };
    PackedTernary::from_codes(rows, columns, scales, code).map_err(|e| format!("{e}"))
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
