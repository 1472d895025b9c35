//! A random choice by weights, in integers: the same on every backend. Of things with weights w,
//! each runs a race that takes the time E/w, with E exponentially distributed; thing i comes first
//! with probability w_i / Σ w. In logarithms that is the Gumbel-max trick, for -ln E is Gumbel
//! noise (Yellott 1977, "The relationship between Luce's choice axiom, Thurstone's theory of
//! comparative judgment, and the double exponential distribution"). Here logarithms are to the base
//! 2, in units of 2^-24: `wgsl/shared/race.wgsl` has the same functions.

/// What lies further below the largest logit cannot win: noise differs by less than 38 octaves.
pub const FAR: u32 = 64 << 24;

/// The weight of what lies nowhere below the largest.
const ONE: u32 = 1 << 31;

/// 2^-y = 1 - y·(c0 - y·(c1 - ..)), within 2^-28.
const EXP: [u32; 7] =
    [0xb172_17f7, 0x3d7f_7bcb, 0x0e35_8127, 0x0276_41a9, 0x0057_28b0, 0x0009_c200, 0x0000_bda6];

/// log2(1 + t) = t + t·(1 - t)·(c0 - t·(c1 - ..)), within 2^-27.
const LOG: [u32; 9] = [
    0x7154_75f0,
    0x4755_85f8,
    0x33bf_a732,
    0x2845_db46,
    0x1fb6_029f,
    0x16f0_2c42,
    0x0d2d_8686,
    0x04f6_fdeb,
    0x00e0_aa30,
];

/// log2(-ln(1 - y/2) / (y/2)) = y·(c0 - z·(c1 - ..)) with z = 1 - y, within 2^-27.
const NEAR: [u32; 9] = [
    0x78a2_c43c,
    0x2add_4bae,
    0x17da_0d39,
    0x0fdf_7825,
    0x0b4d_5352,
    0x07ac_571b,
    0x043e_d6f6,
    0x0190_b34d,
    0x0045_f022,
];

/// What differences of logits are multiplied with: log2(e) / T, in units of 2^-24. It is finite for
/// all T > 0.
pub fn scale(temperature: f32) -> f32 {
    let scale = f64::from(1 << 24) * std::f64::consts::LOG2_E / f64::from(temperature);
    scale.min(f32::MAX.into()) as f32
}

/// How far a logit lies below the largest, at most [`FAR`]: a difference and a product in `f32`,
/// each rounded once, then cut to a whole number.
pub fn distance(largest: f32, logit: f32, scale: f32) -> u32 {
    let octaves = (largest - logit) * scale;
    // The cast would saturate; the comparison is the kernel's.
    if octaves < FAR as f32 { octaves as u32 } else { FAR }
}

/// 2^31 · 2^-distance, within one unit and 2^-28 of it; 0 beyond 32 octaves.
pub fn weight(distance: u32) -> u32 {
    let m = ONE - (upper(distance << 8, series(&EXP, distance << 8)) >> 1);
    m.checked_shr(distance >> 24).unwrap_or(0)
}

/// log2(-ln(1 - v)) + 33 for v = (2·word + 1) / 2^33, within four units: the exponential variate of
/// a random word. From 0 to 37.52 octaves.
pub fn noise(word: u32) -> u32 {
    /// -log2(ln 2)
    const LN_2: u32 = 8_871_228;
    if word < 1 << 31 {
        let y = 2 * word + 1;
        return log2(y) + (upper(y, series(&NEAR, !y)) >> 8);
    }
    // 1 - v = (2·!word + 1) / 2^33.
    let octaves = (33 << 24) - log2(2 * !word + 1);
    log2(octaves) + (9 << 24) - LN_2
}

/// At most [`noise`], by less work.
pub fn least_noise(word: u32) -> u32 {
    (2 * word.min((1 << 31) - 1) + 1).ilog2() << 24
}

/// log2 of a whole number above 0.
fn log2(x: u32) -> u32 {
    let zeros = x.leading_zeros();
    // What follows the leading one.
    let t = (x << zeros) << 1;
    let fraction = t + upper(upper(t, !t), series(&LOG, t));
    ((31 - zeros) << 24) | (fraction >> 8)
}

/// c0 - x·(c1 - x·(c2 - ..)), all in units of 2^-32.
fn series(c: &[u32], x: u32) -> u32 {
    c.iter().rev().fold(0, |sum, c| c - upper(x, sum))
}

/// The upper word of a product.
fn upper(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: f64 = (1 << 24) as f64;

    /// Words of every magnitude, and both ends.
    fn words() -> impl Iterator<Item = u32> {
        let steps = (0..200_000).map(|i: u32| i.wrapping_mul(0x9e37_79b1));
        steps.flat_map(|word| [word, word >> (word % 32), !(word >> (word % 32))]).chain([
            0,
            1,
            (1 << 31) - 1,
            1 << 31,
            u32::MAX,
        ])
    }

    #[test]
    fn weights_are_powers_of_two() {
        assert_eq!(
            (weight(0), weight(1 << 24), weight(31 << 24), weight(32 << 24), weight(FAR)),
            (1 << 31, 1 << 30, 1, 0, 0)
        );
        for distance in words().map(|word| word % FAR) {
            let exact = f64::from(ONE) * (-f64::from(distance) / UNIT).exp2();
            assert!(
                (f64::from(weight(distance)) - exact).abs() <= 1.0 + exact * 2f64.powi(-28),
                "{distance}"
            );
        }
    }

    #[test]
    fn noise_is_the_logarithm_of_an_exponential_variate() {
        for word in words() {
            let v = (2.0 * f64::from(word) + 1.0) * 2f64.powi(-33);
            let exact = (-(-v).ln_1p()).log2() + 33.0;
            let off = f64::from(noise(word)) - exact * UNIT;
            assert!(off.abs() <= 4.0, "{word}: off by {off}");
            assert!(least_noise(word) <= noise(word), "{word}");
        }
        // So nothing beyond FAR can win against what lies nowhere below the largest.
        assert!(noise(u32::MAX) < 38 << 24 && noise(0) == 0);
    }

    #[test]
    fn distances_are_octaves_of_the_temperature() {
        let octaves = |largest, logit, temperature| {
            f64::from(distance(largest, logit, scale(temperature))) / UNIT
        };
        assert_eq!(octaves(3.0, 3.0, 1e-45), 0.0);
        assert_eq!(octaves(3.0, 2.999, f32::MIN_POSITIVE), 64.0);
        assert_eq!(
            (octaves(3e38, -3e38, 1.0), octaves(3.0, f32::NEG_INFINITY, f32::MAX)),
            (64.0, 64.0)
        );
        assert!((octaves(4.0, 2.5, 0.5) - 3.0 * std::f64::consts::LOG2_E).abs() < 1e-6);
        assert_eq!(octaves(1.0, -1.0, f32::MAX), 0.0);
    }
}
