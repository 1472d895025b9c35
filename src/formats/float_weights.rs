//! Linear layers that are stored in floats.

use super::format_error::{FormatError, unsupported};
use crate::{
    cpu::quantize::quantize_weights,
    files::display,
    ops::bitnet::WeightQuantizer,
    weights::ternary::{
        packed::PackedTernary,
        scales::{Scales, USUAL_GROUP},
    },
};
use std::{path::Path, sync::Once};

/// What is made of linear layers in floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatWeights {
    /// They are quantized, as BitNet's layers do it at every call: `quantization_mode` `online`.
    Online,
    /// They are taken as they are where they are ternary already, and else quantized: the model was
    /// trained so, or the caller wants it.
    Quantize,
    /// They are taken as they are where they are ternary already, with one scale, with one for
    /// every row or with one for every [`GROUP`] columns, and else refused.
    Refuse,
    /// As `Refuse`, but that the caller wants others quantized.
    Allow,
}

/// Columns that share a scale where float weights are ternary in groups: Ternary-Bonsai's. Those of
/// TriLM, which has a scale for each part of a matrix that was on another device, are whole numbers
/// of them.
const GROUP: usize = USUAL_GROUP;

const REFUSED: &str = "and the file does not say that the model was trained for ternary weights: \
     quantized, it would be another model. ReadOptions::quantize allows it (--quantize on the command line)";

impl FloatWeights {
    /// Allows quantizing where it would be refused.
    pub fn or_quantize(self, allowed: bool) -> Self {
        if allowed && self == Self::Refuse { Self::Allow } else { self }
    }

    /// Says, once for a file, what its author may not have meant, after a matrix of floats was
    /// taken as it is though nothing says how activations are computed.
    pub fn warn(said: &Once, path: &Path, quantized_activations: bool) {
        let (path, how) =
            (display(path), if quantized_activations { "in 8 bits" } else { "in floats" });
        said.call_once(|| {
            log::warn!(
                "{path}: float weights with ternary values, and no setting for activations; assumed: {how}. \
                 Set ReadOptions::quantized_activations (--activations on the command line)"
            )
        });
    }

    /// The ternary matrix of `weights`.
    pub fn matrix(
        self,
        weights: &[f32],
        rows: usize,
        columns: usize,
    ) -> Result<PackedTernary, FormatError> {
        let found =
            if self == Self::Online { Err(String::new()) } else { ternary(weights, rows, columns) };
        let misfit = match found {
            Ok(matrix)
                if matches!(self, Self::Refuse | Self::Allow) || !has_several_scales(&matrix) =>
            {
                return Ok(matrix);
            }
            Ok(_) => String::new(),
            Err(misfit) => misfit,
        };
        // Before they are refused, so that weights that are not finite are named as such.
        let quantized = quantize_weights(weights, [rows, columns], WeightQuantizer::absmean())
            .map_err(|e| format!("cannot be quantized: {e}"))?;
        if self == Self::Refuse {
            return unsupported(format!(
                "is in floats of more than three values, {misfit}, {REFUSED}"
            ));
        }
        if log::log_enabled!(log::Level::Info) {
            log::info!(
                "quantization changes the weights by {:.0} % of their norm",
                100.0 * relative_error(weights, &quantized)
            );
        }
        Ok(quantized)
    }
}

/// The matrix of floats with only the values -a, 0 and a, in all of it, in every row or in every
/// [`GROUP`] columns of a row. Some converters write ternary weights as floats; quantizing those
/// again by their absmean would give a wrong scale.
///
/// # Errors
/// What does not fit.
pub(super) fn ternary(
    weights: &[f32],
    rows: usize,
    columns: usize,
) -> Result<PackedTernary, String> {
    let code = |row: usize, column: usize| match weights[row * columns + column] {
        0.0 => 1,
        w if w < 0.0 => 0,
        _ => 2,
    };
    let scales = match scales(weights, rows, columns, columns) {
        Ok(scales) => Scales::of_rows(scales),
        Err(_) => Scales::Groups { size: GROUP, scales: scales(weights, rows, columns, GROUP)? },
    };
    PackedTernary::from_codes(rows, columns, scales, code).map_err(|e| e.to_string())
}

/// The magnitude that all weights but zeros have in every `size` columns of a row, the last of
/// which may be fewer; 0 where there are zeros only.
///
/// # Errors
/// The first of them that has two, and how many have.
fn scales(weights: &[f32], rows: usize, columns: usize, size: usize) -> Result<Vec<f32>, String> {
    let groups = columns.div_ceil(size.max(1));
    let of = |i: usize| {
        let (row, first) = (i / groups, i % groups * size);
        &weights[row * columns + first..row * columns + columns.min(first + size)]
    };
    let scale = |i: usize| of(i).iter().find(|&&w| w != 0.0).map_or(0.0, |w| w.abs());
    let other =
        |i: usize, scale: f32| of(i).iter().find(|&&w| w != 0.0 && w.abs() != scale).copied();
    let count = rows * groups;
    let scales: Vec<f32> = (0..count).map(scale).collect();
    let mut misfits =
        scales.iter().enumerate().filter_map(|(i, &scale)| Some((i, scale, other(i, scale)?)));
    let Some((i, scale, other)) = misfits.next() else { return Ok(scales) };
    let share = 100.0 * (1 + misfits.count()) as f64 / count as f64;
    let (row, first) = (i / groups, i % groups * size);
    let last = columns.min(first + size) - 1;
    Err(format!(
        "also in rows and in groups of {size} columns ({share:.1} % of these are not ternary; row {row} has {scale} and {other} in columns {first} to {last})"
    ))
}

/// Returns whether the weights have more than one scale. BitNet's have one for each matrix, by
/// definition.
pub(super) fn has_several_scales(matrix: &PackedTernary) -> bool {
    !matches!(matrix.scales(), Scales::Tensor(_))
}

/// ‖W - βWq‖ / ‖W‖, and 0 for a matrix of zeros: what quantizing `weights` to `matrix`, with one
/// scale, moves of them.
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
