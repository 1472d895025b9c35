//! The order in which engines have the weights of models with recurrent layers.

use crate::{
    error::Result,
    formats::{
        Hybrid, ModelConfig,
        tensors::{Layer, LayerStep, Stack},
    },
    weights::ternary::packed::PackedTernary,
};

/// Feature `at` of a head, in the order of engines: those that rotate are the first of each half, so
/// that pairs are half a head apart, as in heads that rotate as a whole. Scores do not depend on the
/// order, in which queries and keys are alike.
fn feature(at: usize, size: usize, rotary: usize) -> usize {
    let (half, turning) = (size / 2, rotary / 2);
    match (at / half, at % half) {
        (0, i) if i < turning => i,
        (0, i) => rotary + i - turning,
        (_, i) if i < turning => turning + i,
        (_, i) => half + i,
    }
}

/// A row of queries, keys, values and gates, in the order of engines, in the order of files: there
/// the gate of a head follows its queries.
fn row(at: usize, c: &ModelConfig, rotary: usize) -> usize {
    let size = c.head_dim;
    let (queries, keys) = (c.heads * size, c.kv_heads * size);
    let place = feature(at % size, size, rotary);
    if at < queries {
        at / size * 2 * size + place
    } else if at < queries + keys {
        queries + at / size * size + place
    } else if at < queries + 2 * keys {
        queries + at
    } else {
        let at = at - queries - 2 * keys;
        at / size * 2 * size + size + at % size
    }
}

/// A layer as it was read, in the order of engines.
///
/// # Errors
/// What reordering reports.
pub(super) fn arranged(
    layer: Layer<PackedTernary, Vec<f32>>,
    c: &ModelConfig,
) -> Result<Layer<PackedTernary, Vec<f32>>> {
    let Some(&Hybrid { rotary, .. }) = c.hybrid.as_ref() else { return Ok(layer) };
    let gains = |gains: &Vec<f32>| -> Vec<f32> {
        (0..gains.len()).map(|at| gains[feature(at, c.head_dim, rotary)]).collect()
    };
    let mut steps = layer.0;
    for n in 0..steps.len() {
        let gated = matches!(steps.get(n + 1), Some(LayerStep::KeepGate));
        match &mut steps[n] {
            LayerStep::Linear(Stack::One(matrix)) if gated => {
                *matrix = matrix.reorder_rows(|at| row(at, c, rotary))?;
            }
            LayerStep::HeadNorms { queries, keys } => {
                (*queries, *keys) = (gains(queries), gains(keys));
            }
            _ => {}
        }
    }
    Ok(Layer(steps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn features_that_rotate_are_half_a_head_apart() {
        for (size, rotary) in [(256, 64), (16, 16), (12, 4), (10, 2)] {
            let all: Vec<usize> = (0..size).map(|at| feature(at, size, rotary)).collect();
            assert!(all.iter().copied().collect::<BTreeSet<_>>().into_iter().eq(0..size));
            for pair in 0..rotary / 2 {
                assert_eq!((all[pair], all[size / 2 + pair]), (pair, rotary / 2 + pair));
            }
        }
    }
}
