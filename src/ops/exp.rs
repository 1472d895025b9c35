//! The exponential of the CPU references: bit-identical on every system, in a form that compilers
//! turn into vectors.

/// 2^52 · 1.5: added to a double below 2^51, it leaves the nearest integer in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// e^x. Within 0.50001 units in the last place: e^r of the remainder r, at most ln 2 / 2, is its
/// Taylor series in doubles, off by 2e-13.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    exp_f64(f64::from(x)) as f32
}

/// e^x within a relative error of 2e-13, of x between -200 and 200; that of the nearer end beyond.
#[inline(always)]
pub(crate) fn exp_f64(x: f64) -> f64 {
    // e^±200 is 0 or infinite as a float.
    let x = x.clamp(-200.0, 200.0);
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let r = x - (rounded - ROUND) * std::f64::consts::LN_2;
    let even = r * r;
    let fourth = even * even;
    // Estrin's scheme: fewer steps wait for each other.
    let low = (1.0 + r) + even * (1.0 / 2.0 + r * (1.0 / 6.0));
    let middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + even * (1.0 / 720.0 + r * (1.0 / 5040.0));
    let high = (1.0 / 40_320.0 + r * (1.0 / 362_880.0)) + even * (1.0 / 3_628_800.0);
    let power = f64::from_bits((rounded.to_bits() << 52).wrapping_add(1023 << 52));
    (low + fourth * (middle + fourth * high)) * power
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn it_is_the_nearest_float_but_for_ties() {
        let (mut worst, mut off) = (0f64, 0);
        for i in 0..2_000_000 {
            let x = (i as f32 - 1_100_000.0) * 1e-4;
            let exact = f64::from(x).exp();
            let (found, nearest) = (exp(x), exact as f32);
            off += usize::from(found != nearest);
            let unit = f64::from(nearest.next_up()) - f64::from(nearest);
            if nearest.is_finite() {
                worst = worst.max(((f64::from(found) - exact) / unit).abs());
            }
        }
        assert!(worst < 0.50001 && off < 200, "{worst} units, {off} others");
    }

    #[test]
    fn extremes() {
        assert_eq!(
            (exp(0.0), exp(-0.0), exp(f32::NEG_INFINITY), exp(f32::INFINITY)),
            (1.0, 1.0, 0.0, f32::INFINITY)
        );
        assert_eq!((exp(-1e30), exp(1e30), exp(89.0)), (0.0, f32::INFINITY, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan());
    }
}
