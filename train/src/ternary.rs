//! Float weights of ternary matrices, and ternary matrices of float weights.

use crate::random::Random;
use bitnet_wgpu::{
    Result,
    bitnet::WeightQuantizer,
    cpu::quantize_weights,
    weights::{PackedTernary, Scales},
};

/// The largest float weight of a zero, and the smallest one of another number, in scales. Between
/// them is one half, where the quantizer rounds; its scale may be off by a few units of 2^-24.
const ZEROS: f32 = 0.45;
const OTHERS: f32 = 0.55;

/// Returns the scale of a matrix, or none where it has several.
pub fn scale(matrix: &PackedTernary) -> Option<f32> {
    match matrix.scales() {
        Scales::Tensor(scale) => Some(*scale),
        _ => None,
    }
}

/// Returns float weights of which the quantizer makes this matrix again, with the codes and, but for
/// rounding, the scale. The quantizer takes the mean of all weights as its scale, so the numbers of
/// the matrix themselves, of which many are 0, would get a smaller one. Weights are drawn evenly
/// from those that become each code. Then a few change their code in each step, as in training from
/// scratch, and not all of a matrix at once.
pub fn float_weights(matrix: &PackedTernary, scale: f32, mut random: Random) -> Vec<f32> {
    let values = matrix.to_values();
    let others = values.iter().filter(|&&value| value != 0).count() as f32;
    if others == 0.0 {
        return vec![0.0; values.len()];
    }
    let zeros = values.len() as f32 - others;
    // The mean size of a nonzero weight that makes the mean of all 1.
    let mean = (values.len() as f32 - zeros * ZEROS / 2.0) / others;
    let draw = |value: i8| match value {
        0 => random.signed() * ZEROS,
        _ => f32::from(value) * (mean + random.signed() * (mean - OTHERS)),
    };
    let mut weights: Vec<f32> = values.iter().copied().map(draw).collect();
    let (mut small, mut large) = (0f64, 0f64);
    for (weight, value) in weights.iter().zip(&values) {
        *if *value == 0 { &mut small } else { &mut large } += f64::from(weight.abs());
    }
    // What was drawn has a mean that is a little off.
    let factor = ((values.len() as f64 - small) / large.max(f64::MIN_POSITIVE)) as f32;
    for (weight, value) in weights.iter_mut().zip(&values) {
        *weight *= scale * if *value == 0 { 1.0 } else { factor };
    }
    weights
}

/// Returns the matrix of float weights: themselves where they are -a, 0 and a, and else what the
/// quantizer makes of them in training.
///
/// # Errors
/// What the quantizer refuses.
pub fn of_floats(numbers: &[f32], rows: usize, columns: usize) -> Result<PackedTernary> {
    match exact(numbers, rows, columns)? {
        Some(matrix) => Ok(matrix),
        None => quantize_weights(numbers, [rows, columns], WeightQuantizer::absmean()),
    }
}

/// Returns the matrix of floats that are -a, 0 and a.
///
/// # Errors
/// None for finite numbers of a matrix.
pub fn exact(numbers: &[f32], rows: usize, columns: usize) -> Result<Option<PackedTernary>> {
    let scale = numbers.iter().fold(0f32, |scale, number| scale.max(number.abs()));
    if scale == 0.0 || numbers.iter().any(|number| *number != 0.0 && number.abs() != scale) {
        return Ok(None);
    }
    let values: Vec<i8> = numbers.iter().map(|number| (number / scale) as i8).collect();
    PackedTernary::from_values(rows, columns, &values, Scales::Tensor(scale)).map(Some)
}

/// Returns the ternary matrix nearest to `numbers` among those whose zeros are below half of
/// `scale`. Its own scale is the mean size of the others, which has the least squared error. Numbers
/// that are -scale, 0 and scale stay as they are.
///
/// # Errors
/// What [`PackedTernary::from_values`] refuses.
pub fn nearest(
    numbers: &[f32],
    (rows, columns): (usize, usize),
    scale: f32,
) -> Result<PackedTernary> {
    let value = |number: &f32| (number / scale).round_ties_even().clamp(-1.0, 1.0) as i8;
    let values: Vec<i8> = numbers.iter().map(value).collect();
    let sizes = numbers.iter().zip(&values).filter(|(_, value)| **value != 0);
    let (sum, count) =
        sizes.fold((0f64, 0usize), |(sum, n), (x, _)| (sum + f64::from(x.abs()), n + 1));
    let fitted = if count == 0 { scale } else { (sum / count as f64) as f32 };
    PackedTernary::from_values(rows, columns, &values, Scales::Tensor(fitted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_weights_become_their_matrix_again() {
        let mut random = Random::new(3, 4);
        for share in [1, 3, 20] {
            let values: Vec<i8> = (0..40 * 24)
                .map(|_| if random.below(share) > 0 { 0 } else { [-1, 1][random.below(2)] })
                .collect();
            let matrix =
                PackedTernary::from_values(40, 24, &values, Scales::Tensor(0.037)).unwrap();
            let weights = float_weights(&matrix, 0.037, Random::new(1, share as u64));
            let again = of_floats(&weights, 40, 24).unwrap();
            assert_eq!(again.to_values(), values);
            assert!((scale(&again).unwrap() / 0.037 - 1.0).abs() < 1e-5, "{:?}", again.scales());
            let zeros = PackedTernary::from_values(2, 3, &[0; 6], Scales::Tensor(0.5)).unwrap();
            assert_eq!(float_weights(&zeros, 0.5, Random::new(1, 1)), [0.0; 6]);
            assert_eq!(of_floats(&matrix.dequantize(), 40, 24).unwrap().scales(), matrix.scales());
        }
    }

    #[test]
    fn the_nearest_matrix_keeps_ternary_numbers() {
        let numbers = [0.5, -0.5, 0.0, 0.5, 0.0, 0.0];
        let same = nearest(&numbers, (2, 3), 0.5).unwrap();
        assert_eq!(same.dequantize(), numbers);
        let moved = nearest(&[0.7, -0.5, 0.2, 0.2, 0.3, 0.0], (2, 3), 0.5).unwrap();
        assert_eq!((moved.to_values(), scale(&moved)), (vec![1, -1, 0, 0, 1, 0], Some(0.5)));
    }
}
