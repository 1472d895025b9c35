//! Weight quantizers on the CPU, vectorized and parallel: bit-identical to the kernels.
//!
//! Sums have the order of the kernels: lanes with a stride, then a tree. `mod reference` of
//! `weight_quantizer.rs` computes the same formulas number by number.

use super::{
    partition::{IntCodes, Partition, THREADS as GROUP_THREADS},
    quantize_weights::{CHUNK, THREADS},
};
use crate::{
    element::{Element, Float},
    error::Result,
    ops::rms::largest_bits,
    weights::{
        int::{affine::Affine, packed::PackedInt},
        ternary::{
            layout::gather,
            packed::PackedTernary,
            scales::{SMALLEST_SCALE, Scales},
        },
    },
};
use rayon::prelude::*;
use std::borrow::Cow;

/// Returns the position of the first weight that is not finite.
pub(super) fn first_not_finite<T: Float>(w: &[T]) -> Option<usize> {
    let is_infinite = |v: f32| !v.is_finite();
    let chunks = w.par_chunks(CHUNK);
    let found = |w: &[T]| largest_bits(&floats(w)) >= f32::INFINITY.to_bits();
    let chunk = chunks.position_first(found)?;
    let first = chunk * CHUNK;
    w[first..].iter().position(|&v| is_infinite(v.into())).map(|at| first + at)
}

/// Quantizes finite weights to -1, 0 and 1 by their mean magnitude.
pub(super) fn ternary<T: Float>(w: &[T], partition: &Partition) -> Result<PackedTernary> {
    let magnitude = |w: &[T]| mean(w, partition.whole, magnitudes);
    let factors = partition.map(w, |w| 1.0 / magnitude(w).max(1e-5));
    let scales = factors.iter().map(|factor| 1.0 / factor).collect();
    let scales = Scales::compress(partition.group, scales);
    let (rows, columns) = (partition.all_rows(), partition.columns);
    PackedTernary::from_rows(rows, columns, scales, |row, words| {
        let mut codes = vec![0; columns];
        by_scale(w, partition, row, &factors, &mut codes, |w, &factor, codes| {
            ternary_codes(w, factor, codes);
        });
        gather(words, &codes, 0);
    })
}

/// Quantizes finite weights to codes of 1 to 8 bits.
pub(super) fn int<T: Float>(
    w: &[T],
    partition: &Partition,
    IntCodes { bits, binary, asymmetric }: IntCodes,
) -> Result<PackedInt> {
    let steps = partition.map(w, |w| {
        if binary {
            Steps::binary(w, partition.whole)
        } else {
            Steps::uniform(&floats(w), bits.max_code(), asymmetric)
        }
    });
    let scales = steps.iter().map(|steps| steps.scale).collect();
    let zeros = steps.iter().map(|steps| steps.zero).collect();
    let affine = Affine { group: partition.group, scales, zeros };
    let (rows, columns) = (partition.all_rows(), partition.columns);
    PackedInt::from_rows(rows, columns, bits, affine, |row, codes| {
        by_scale(w, partition, row, &steps, codes, |w, steps, codes| {
            if binary {
                binary_codes(w, steps.mean, codes);
            } else {
                int_codes(w, steps, codes);
            }
        });
    })
}

/// Calls `each` for the weights and codes of a row that share a scale, and for what `parts` has
/// for them.
fn by_scale<T: Float, S>(
    w: &[T],
    partition: &Partition,
    row: usize,
    parts: &[S],
    codes: &mut [u8],
    each: impl Fn(&[f32], &S, &mut [u8]),
) {
    let columns = partition.columns;
    let size = partition.group.unwrap_or(columns).max(1);
    let row_weights = floats(&w[row * columns..][..columns]);
    let groups = row_weights.chunks(size).zip(codes.chunks_mut(size));
    for ((w, codes), part) in groups.zip(&parts[partition.at(row, 0)..]) {
        each(w, part, codes);
    }
}

/// Returns weights as `f32`, without a copy where they are.
fn floats<T: Float>(w: &[T]) -> Cow<'_, [f32]> {
    match bytemuck::try_cast_slice(w) {
        Ok(w) if T::ELEMENT == Element::F32 => Cow::Borrowed(w),
        _ => Cow::Owned(w.iter().map(|&v| v.into()).collect()),
    }
}

/// The scale, zero point and rounding of weights that share them.
#[derive(Clone)]
struct Steps {
    scale: f32,
    zero: f32,
    /// 1 / scale, or 0 where all codes are 0.
    per_unit: f32,
    max_code: f32,
    /// The mean of the weights, above which a binary code is 1.
    mean: f32,
}

impl Steps {
    fn uniform(w: &[f32], max_code: u8, asymmetric: bool) -> Self {
        let (below, above) = range(w);
        let (max_code, half) = (f32::from(max_code), f32::from(max_code / 2));
        let scale = if asymmetric { (above + below) / max_code } else { above.max(below) / half };
        if scale < SMALLEST_SCALE {
            return Self { scale: 0.0, zero: 0.0, per_unit: 0.0, max_code, mean: 0.0 };
        }
        let per_unit = 1.0 / scale;
        let lowest = (below * per_unit).round_ties_even().min(max_code);
        let zero = if asymmetric { lowest } else { half + 1.0 };
        Self { scale, zero, per_unit, max_code, mean: 0.0 }
    }

    fn binary<T: Float>(w: &[T], whole: bool) -> Self {
        let scale = 2.0 * mean(w, whole, magnitudes);
        let scale = if scale < SMALLEST_SCALE { 0.0 } else { scale };
        let mean = mean(w, whole, plain);
        Self { scale, zero: 0.5, per_unit: 0.0, max_code: 1.0, mean }
    }
}

/// Returns a mean of weights: of a whole matrix by the sums of chunks, else as a workgroup adds up
/// a group. 0 of no weights.
fn mean<T: Float>(w: &[T], whole: bool, add: Add) -> f32 {
    let sum = if whole {
        let chunks = w.par_chunks(CHUNK).map(|w| lane_sum(&floats(w), THREADS, add));
        lane_sum(&chunks.collect::<Vec<f32>>(), THREADS, plain)
    } else {
        lane_sum(&floats(w), GROUP_THREADS, add)
    };
    sum / w.len().max(1) as f32
}

/// Adds numbers, as many as there are lanes at a time, to the lanes.
type Add = fn(&mut [f32], &[f32]);

/// Returns the sum of a workgroup: every lane its stride, then a tree.
fn lane_sum(x: &[f32], lanes: usize, add: Add) -> f32 {
    let mut sums = [0f32; THREADS];
    let mut sums = &mut sums[..lanes];
    add(sums, x);
    while sums.len() > 1 {
        let (low, high) = sums.split_at_mut(sums.len() / 2);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        sums = low;
    }
    sums[0]
}

#[multiversion::multiversion(targets = "simd")]
fn magnitudes(sums: &mut [f32], x: &[f32]) {
    for x in x.chunks(sums.len()) {
        sums.iter_mut().zip(x).for_each(|(sum, v)| *sum += v.abs());
    }
}

#[multiversion::multiversion(targets = "simd")]
fn plain(sums: &mut [f32], x: &[f32]) {
    for x in x.chunks(sums.len()) {
        sums.iter_mut().zip(x).for_each(|(sum, v)| *sum += v);
    }
}

/// Returns how far finite numbers reach below and above 0.
#[multiversion::multiversion(targets = "simd")]
fn range(x: &[f32]) -> (f32, f32) {
    /// Extremes side by side.
    const LANES: usize = 16;
    let mut below = [0f32; LANES];
    let mut above = [0f32; LANES];
    for x in x.chunks(LANES) {
        for ((below, above), &v) in below.iter_mut().zip(&mut above).zip(x) {
            *below = if -v > *below { -v } else { *below };
            *above = if v > *above { v } else { *above };
        }
    }
    (below.into_iter().fold(0.0, f32::max), above.into_iter().fold(0.0, f32::max))
}

/// Writes clamp(round(w·factor), -1, 1) + 1, ties to even: ±½ is 0.
#[multiversion::multiversion(targets = "simd")]
fn ternary_codes(w: &[f32], factor: f32, codes: &mut [u8]) {
    for (code, v) in codes.iter_mut().zip(w) {
        let value = v * factor;
        *code = 1 + u8::from(value > 0.5) - u8::from(value < -0.5);
    }
}

/// Writes 1 where a weight is above the mean, else 0.
#[multiversion::multiversion(targets = "simd")]
fn binary_codes(w: &[f32], mean: f32, codes: &mut [u8]) {
    codes.iter_mut().zip(w).for_each(|(code, v)| *code = u8::from(*v > mean));
}

/// Writes clamp(round(w / scale) + zero, 0, max), ties to even.
#[multiversion::multiversion(targets = "simd")]
fn int_codes(w: &[f32], steps: &Steps, codes: &mut [u8]) {
    /// 3 · 2^22, whose last place is 1: a number that is added to it is rounded.
    const UNITS: f32 = 12_582_912.0;
    let &Steps { zero, per_unit, max_code, .. } = steps;
    for (code, v) in codes.iter_mut().zip(w) {
        let rounded = v * per_unit + UNITS - UNITS;
        *code = ((rounded + zero).clamp(0.0, max_code) + UNITS).to_bits() as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::weight_quantizer::reference, *};
    use crate::{
        ops::bitnet::{QuantizedWeights, WeightQuantizer},
        weights::int::{bits::Bits, matrix::IntMatrix},
    };
    use half::f16;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    /// Compares a quantizer with its reference, for `f32` and `f16`.
    fn check<M: QuantizedWeights>(w: &[f32], shape: [usize; 3], quantizer: WeightQuantizer<M>) {
        let shape = &shape;
        let rounded: Vec<f16> = w.iter().map(|&v| f16::from_f32(v)).collect();
        let found = quantizer.quantize_cpu(w, *shape).unwrap();
        assert!(found == reference::quantize_weights(w, *shape, quantizer).unwrap(), "{shape:?}");
        let found = quantizer.quantize_cpu(&rounded, *shape).unwrap();
        let expected = reference::quantize_weights(&rounded, *shape, quantizer).unwrap();
        assert!(found == expected, "{shape:?}, f16");
    }

    /// Compares every quantizer with every granularity.
    fn check_all(w: &[f32], shape: [usize; 3]) {
        let ternary = WeightQuantizer::absmean();
        let ternary = [ternary, ternary.per_row(), ternary.per_matrix(), ternary.per_group(48)];
        ternary.into_iter().for_each(|quantizer| check(w, shape, quantizer));
        let binary = WeightQuantizer::binary();
        let mut ints = vec![binary, binary.per_row(), binary.per_matrix(), binary.per_group(32)];
        for bits in [Bits::Two, Bits::Four, Bits::Eight] {
            let int: WeightQuantizer<IntMatrix> = WeightQuantizer::int(bits);
            ints.extend([int, int.per_group(64), int.asymmetric(), int.asymmetric().per_group(96)]);
        }
        ints.into_iter().for_each(|quantizer| check(w, shape, quantizer));
    }

    #[test]
    fn packed_weights_are_bit_identical_to_the_reference() {
        let mut rng = StdRng::seed_from_u64(31);
        for shape in [[0, 2, 3], [1, 1, 1], [2, 3, 17], [3, 5, 130], [1, 40, 1000], [2, 300, 257]] {
            let count = shape.iter().product();
            let mut w: Vec<f32> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
            check_all(&w, shape);
            // Ties, zeros of either sign, and numbers far apart.
            w.iter_mut().for_each(|v| *v = (*v * 4.0).round() / 8.0);
            check_all(&w, shape);
            w.iter_mut().step_by(7).for_each(|v| *v *= 1e4);
            w.iter_mut().skip(3).step_by(5).for_each(|v| *v *= 1e-7);
            check_all(&w, shape);
            check_all(&vec![-0.0; count], shape);
            check_all(&vec![1e-30; count], shape);
        }
    }

    #[test]
    fn first_weight_that_is_not_finite_is_found() {
        let mut w = vec![1f32; 3 * CHUNK + 5];
        assert_eq!(first_not_finite(&w), None);
        (w[2 * CHUNK + 9], w[3 * CHUNK]) = (f32::NEG_INFINITY, f32::NAN);
        assert_eq!(first_not_finite(&w), Some(2 * CHUNK + 9));
    }
}
