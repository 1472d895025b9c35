//! The root mean square of a row, the same bits on every device: the CPU twin of wgsl/shared/rms.wgsl.

/// 1 / sqrt(mean(v²) + eps); NaN for a row that is not finite. Squares are scaled so that the largest is 2^28 to 2^30, rounded to integers and added
/// exactly, so that order does not matter. The sum of n squares is off by n / 2 units at most, and by about sqrt(n) / 4 where roundings are random.
pub(super) fn inverse_rms(row: impl Iterator<Item = f32> + Clone, eps: f32) -> f32 {
    let (features, largest) = row.clone().fold((0u32, 0), |(count, bits), v| (count + 1, v.abs().to_bits().max(bits)));
    if largest >= f32::INFINITY.to_bits() {
        return f32::NAN;
    }
    let exponent = (largest >> 23).max(15);
    let scale = f32::from_bits((268 - exponent) << 23);
    let total: u64 = row.map(|v| v * scale).map(|u| (u * u).round_ties_even() as u64).sum();
    let (nearest, lacks) = round(total);
    let back = f32::from_bits((exponent - 14) << 23);
    let mean = nearest / features as f32 * f32::from_bits(((127 + lacks) as u32) << 23) * back * back;
    1.0 / (mean + eps).sqrt()
}

/// The nearest float in [2^23, 2^24], halves up, and the exponent of two that it lacks.
fn round(total: u64) -> (f32, i32) {
    let Some(first) = total.checked_ilog2() else { return (0.0, 0) };
    let top = if first >= 31 { total >> (first - 31) } else { total << (31 - first) };
    (((top >> 8) + (top >> 7 & 1)) as f32, first as i32 - 23)
}

#[cfg(test)]
mod tests {
    use super::inverse_rms;

    #[test]
    fn it_is_the_nearest_to_the_exact_mean() {
        let rows =
            [vec![1.0], vec![3.0, -4.0], vec![0.0; 7], vec![1e-3; 512], (0..2560).map(|i| (i as f32).sin() * 1e4).collect::<Vec<_>>()];
        for row in rows {
            let squares: f64 = row.iter().map(|&v: &f32| f64::from(v * v)).sum();
            let mean = squares as f32 / row.len() as f32;
            assert_eq!(inverse_rms(row.iter().copied(), 1e-5), 1.0 / (mean + 1e-5).sqrt(), "{} numbers", row.len());
        }
    }

    #[test]
    fn extremes() {
        // A mean that is no float, as in transformers; squares alone may be none.
        assert_eq!(inverse_rms([1.0, -3e38].into_iter(), 1e-5), 0.0);
        assert!((inverse_rms([0.0, 2e19f32].into_iter(), 1e-5) * 2e19f32 / 2f32.sqrt() - 1.0).abs() < 1e-6);
        assert_eq!(inverse_rms([1e-40f32].into_iter(), 1e-6), 1.0 / 1e-6f32.sqrt());
        assert!(inverse_rms([1.0, f32::NAN].into_iter(), 1e-5).is_nan());
        assert!(inverse_rms([1.0, f32::INFINITY].into_iter(), 1e-5).is_nan());
    }
}
