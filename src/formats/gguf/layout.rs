//! Finds the layout of a file's I2_S tensors by their weights.
//!
//! In a trained model, the share of nonzero weights in a column goes with the gain by which the
//! norm before the layer multiplies that column. Read in another layout, the counts belong to other
//! columns. The score of a layout is the sum of `n r²` over norms, where `r` is
//! the correlation of `n` gains with the shares of nonzero weights in `n` columns. For weights that
//! do not depend on gains, each norm adds about 1.

use super::{
    blocks::{GgufType, I2sLayout},
    file::GgufTensor,
};
use crate::{
    files::display,
    formats::{
        config::ModelConfig,
        tensors::{Gains, LayerStep, Matrix, Stack, layer_tensors},
    },
};
use rayon::prelude::*;
use std::path::Path;

/// Most rows of a matrix that are read: its first ones. A whole number of blocks in any layout.
const MOST_ROWS: usize = 256;
/// Least score of a layout that is found. The trained model in `assets` has 2500, and 320 in the
/// wrong layouts at most; thirty models of random weights have 24 at most.
const LEAST_SCORE: f64 = 64.0;
/// Least ratio of the best score to the next one: 8 in a trained model.
const LEAST_RATIO: f64 = 2.0;

const LAYOUTS: [I2sLayout; 3] = [I2sLayout::X86, I2sLayout::Arm, I2sLayout::Rows];

/// A model whose layout is looked for. Names of tensors are those of transformers.
pub(super) struct Weights<'a> {
    pub path: &'a Path,
    pub config: &'a ModelConfig,
    pub matrix: &'a dyn Fn(&str) -> Option<GgufTensor<'a>>,
    pub gains: &'a dyn Fn(&str, usize) -> Option<Vec<f32>>,
}

/// Returns the layout to read a model in, and logs how it was found. A layout that was asked for is
/// used in any case.
pub(super) fn choose(model: &Weights<'_>, asked: Option<I2sLayout>) -> I2sLayout {
    let path = display(model.path);
    let found = find(model);
    match (asked, found) {
        (Some(asked), Some(found)) if asked != found => {
            log::warn!(
                "{path}: the I2_S layout {asked} was asked for, but the weights have the layout {found}: the model will probably write gibberish"
            );
            asked
        }
        (Some(asked), _) => asked,
        (None, Some(found)) => {
            log::info!("{path}: the I2_S layout is {found}, by the weights");
            found
        }
        (None, None) => {
            let layout = I2sLayout::X86;
            log::info!(
                "{path}: the I2_S layout is {layout}, the usual one; the weights do not tell"
            );
            layout
        }
    }
}

/// Returns the layout that the weights have; none if they do not tell.
fn find(model: &Weights<'_>) -> Option<I2sLayout> {
    let mut scores = scores(model);
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    let [(best, score), (_, next), _] = scores;
    (score >= LEAST_SCORE && score >= LEAST_RATIO * next).then_some(best)
}

/// Returns the score of each layout, by the first, the middle and the last layer.
fn scores(model: &Weights<'_>) -> [(I2sLayout, f64); 3] {
    let mut scores = LAYOUTS.map(|layout| (layout, 0.0));
    let last = model.config.layers.saturating_sub(1);
    let mut layers = vec![0, last / 2, last];
    layers.dedup();
    for layer in layers {
        let prefix = format!("model.layers.{layer}.");
        for (gains, matrices) in after_norms(model.config) {
            let codes: Vec<_> =
                matrices.iter().filter_map(|matrix| first_codes(model, &prefix, matrix)).collect();
            let gains = (model.gains)(&format!("{prefix}{}", gains.name), gains.len);
            let Some(gains) = gains.filter(|_| !codes.is_empty()) else { continue };
            scores.par_iter_mut().for_each(|(layout, score)| {
                let mut nonzeros = vec![0; gains.len()];
                codes.iter().for_each(|codes| add_nonzeros(*layout, codes, &mut nonzeros));
                *score += gains.len() as f64 * squared_correlation(&gains, &nonzeros);
            });
        }
    }
    scores
}

/// Returns the norms of a layer with the matrices that multiply what they give.
fn after_norms(config: &ModelConfig) -> Vec<(Gains, Vec<Matrix>)> {
    let (mut pairs, mut norm) = (Vec::new(), None);
    for step in layer_tensors(config).0 {
        norm = match (step, norm) {
            (LayerStep::Norm(gains), _) => Some(gains),
            (LayerStep::Linear(Stack::One(matrices)), Some(gains)) => {
                pairs.push((gains, matrices));
                None
            }
            (LayerStep::Linear(Stack::Normed(each)), _) => {
                pairs.extend(each);
                None
            }
            _ => None,
        };
    }
    pairs
}

/// Returns the codes of the first rows of a matrix; none if it is not I2_S, or if a layout cannot
/// hold it.
fn first_codes(model: &Weights<'_>, prefix: &str, matrix: &Matrix) -> Option<Vec<u8>> {
    let mut tensor = (model.matrix)(&format!("{prefix}{}", matrix.name))?;
    let elements = matrix.rows.min(MOST_ROWS) * matrix.columns;
    let fits = elements.is_multiple_of(128) && matrix.rows.is_multiple_of(4);
    let shape = tensor.matrix().ok()?;
    (tensor.kind == GgufType::I2S && shape == (matrix.rows, matrix.columns) && fits).then(|| {
        tensor.bytes.truncate(elements / 4);
        tensor.bytes
    })
}

/// Adds the number of nonzero weights in each column.
fn add_nonzeros(layout: I2sLayout, codes: &[u8], nonzeros: &mut [u32]) {
    let (columns, (size, run)) = (nonzeros.len(), layout.block());
    for (at, &byte) in codes.iter().enumerate() {
        for quarter in (0..4).filter(|quarter| byte >> (6 - 2 * quarter) & 3 != 1) {
            let column = match layout {
                I2sLayout::Rows => at % columns,
                _ => (at / run * size + quarter * run + at % run) % columns,
            };
            nonzeros[column] += 1;
        }
    }
}

/// Returns the square of the correlation of two lists; 0 if one of them is constant.
fn squared_correlation(gains: &[f32], nonzeros: &[u32]) -> f64 {
    let count = gains.len() as f64;
    let pairs = || gains.iter().zip(nonzeros).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let (a_sum, b_sum) = pairs().fold((0.0, 0.0), |(x, y), (a, b)| (x + a, y + b));
    let (a_mean, b_mean) = (a_sum / count, b_sum / count);
    let (aa, bb, ab) = pairs().fold((0.0, 0.0, 0.0), |(aa, bb, ab), (a, b)| {
        let (a, b) = (a - a_mean, b - b_mean);
        (aa + a * a, bb + b * b, ab + a * b)
    });
    if aa > 0.0 && bb > 0.0 { ab * ab / (aa * bb) } else { 0.0 }
}
