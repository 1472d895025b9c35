//! The root mean square of a row, the same bits on every device: the CPU twin of wgsl/shared/rms.wgsl.

/// 1 / sqrt(mean(v²) + eps); NaN for a row that is not finite. Squares are cut into integers and added exactly, so that order does not matter;
/// what is cut off is for less than 4096 numbers less than 2^-36 of the largest square, for 2^16 less than 2^-28.
pub(super) fn inverse_rms(row: impl Iterator<Item = f32> + Clone, eps: f32) -> f32 {
    let (features, bits) = row.clone().fold((0u32, 0), |(count, bits), v| (count + 1, v.abs().to_bits().max(bits)));
    if bits >= f32::INFINITY.to_bits() {
        return f32::NAN;
    }
    let exponent = (bits >> 23).max(1);
    let scale = f32::from_bits((255 - exponent) << 23);
    let limb = 30 - features.max(1).ilog2();
    let total: u64 = row.map(|v| v * scale).map(|u| cut((u * u).to_bits(), limb)).sum();
    let (nearest, lacks) = round(total);
    let power = lacks + 4 - 2 * limb as i32;
    let factor = two_to((exponent as i32 - 128).max(-126));
    let mean = nearest / features as f32 * two_to(power) * factor * factor;
    1.0 / (mean + eps).sqrt()
}

/// A number below 16, given as a float's bits, in units of 2^(4 - 2·limb).
fn cut(bits: u32, limb: u32) -> u64 {
    let significand = if bits >= 0x80_0000 { u64::from(bits & 0x7f_ffff | 0x80_0000) } else { 0 };
    let shift = 154 - 2 * limb as i32 - (bits >> 23) as i32;
    if shift <= 0 { significand << -shift } else { significand >> shift.min(63) }
}

/// The nearest float in [2^23, 2^24], halves up, and the exponent of two that it lacks.
fn round(total: u64) -> (f32, i32) {
    let Some(first) = total.checked_ilog2() else { return (0.0, 0) };
    let top = if first >= 31 { total >> (first - 31) } else { total << (31 - first) };
    (((top >> 8) + (top >> 7 & 1)) as f32, first as i32 - 23)
}

fn two_to(power: i32) -> f32 {
    f32::from_bits(((127 + power) as u32) << 23)
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
