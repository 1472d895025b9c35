//! The root mean square of a row, bit-identical on every device: the CPU reference of
//! wgsl/shared/rms.wgsl.

/// 1 / sqrt(mean(v²) + eps); NaN for a row that is not finite. Squares are scaled so that the
/// largest is 2^28 to 2^30, rounded to integers and added exactly, so that order does not matter.
/// The sum of n squares is off by n / 2 units at most, and by about sqrt(n) / 4 where roundings are
/// random.
pub(crate) fn inverse_rms(row: &[f32], eps: f32) -> f32 {
    let largest = largest_bits(row);
    if largest >= f32::INFINITY.to_bits() {
        return f32::NAN;
    }
    let exponent = (largest >> 23).max(15);
    let scale = f32::from_bits((268 - exponent) << 23);
    let (nearest, lacks) = round(sum_squares(row, scale));
    let back = f32::from_bits((exponent - 14) << 23);
    let mean =
        nearest / row.len() as f32 * f32::from_bits(((127 + lacks) as u32) << 23) * back * back;
    1.0 / (mean + eps).sqrt()
}

/// The bits of the largest magnitude of a row, 0 of an empty one. They order like integers, with
/// NaN above infinity; `f32::max` would lose a NaN.
#[multiversion::multiversion(targets = "simd")]
pub(super) fn largest_bits(row: &[f32]) -> u32 {
    row.iter().fold(0, |bits, v| v.abs().to_bits().max(bits))
}

/// Σ (v·scale)², each rounded, half to even, to an integer of at most 2^30. (Of `as`, which
/// saturates, compilers make no vectors.)
#[multiversion::multiversion(targets = "simd")]
fn sum_squares(row: &[f32], scale: f32) -> u64 {
    /// 2^52, whose last place is 1: a square that is added to it is rounded, and is what its bits
    /// have more.
    const UNITS: f64 = 4_503_599_627_370_496.0;
    row.iter()
        .map(|v| v * scale)
        .map(|u| (f64::from(u * u) + UNITS).to_bits() - UNITS.to_bits())
        .sum()
}

/// Multiplies a row by what [`inverse_rms`] gave, and by its gain.
#[multiversion::multiversion(targets = "simd")]
pub(crate) fn normalize(row: &mut [f32], gain: &[f32], inverse: f32) {
    row.iter_mut().zip(gain).for_each(|(v, g)| *v = *v * inverse * g);
}

/// The nearest float in [2^23, 2^24], halves up, and the exponent of two that it lacks.
fn round(total: u64) -> (f32, i32) {
    let Some(first) = total.checked_ilog2() else { return (0.0, 0) };
    let top = if first >= 31 { total >> (first - 31) } else { total << (31 - first) };
    (((top >> 8) + (top >> 7 & 1)) as f32, first as i32 - 23)
}

#[cfg(test)]
mod tests {
    use super::{inverse_rms, sum_squares};

    #[test]
    fn it_is_the_nearest_to_the_exact_mean() {
        let rows = [
            vec![1.0],
            vec![3.0, -4.0],
            vec![0.0; 7],
            vec![1e-3; 512],
            (0..2560).map(|i| (i as f32).sin() * 1e4).collect::<Vec<_>>(),
        ];
        for row in rows {
            let squares: f64 = row.iter().map(|&v: &f32| f64::from(v * v)).sum();
            let mean = squares as f32 / row.len() as f32;
            assert_eq!(
                inverse_rms(&row, 1e-5),
                1.0 / (mean + 1e-5).sqrt(),
                "{} numbers",
                row.len()
            );
        }
    }

    #[test]
    fn squares_are_rounded_half_to_even() {
        // With 2^14 the largest, squares are as they are, and those of √(n + ½) are next to halves.
        let halves = (0..500).map(|n| (n as f32 + 0.5).sqrt());
        let row: Vec<f32> = halves
            .chain((0..99).map(|n| n as f32 / 2.0))
            .chain([0.0, 32_768.0, -23_170.475])
            .collect();
        let expected = row.iter().map(|v| (v * v).round_ties_even() as u64).sum::<u64>();
        assert_eq!(sum_squares(&row, 1.0), expected);
    }

    #[test]
    fn extremes() {
        // A mean that is no float, as in transformers; squares alone may be none.
        assert_eq!(inverse_rms(&[1.0, -3e38], 1e-5), 0.0);
        assert!((inverse_rms(&[0.0, 2e19f32], 1e-5) * 2e19f32 / 2f32.sqrt() - 1.0).abs() < 1e-6);
        assert_eq!(inverse_rms(&[1e-40f32], 1e-6), 1.0 / 1e-6f32.sqrt());
        assert!(inverse_rms(&[1.0, f32::NAN], 1e-5).is_nan());
        assert!(inverse_rms(&[1.0, f32::INFINITY], 1e-5).is_nan());
    }
}
