//! Sampled tokens have the probabilities of softmax.

use bitnet_wgpu::{reference, transformer::SampleOptions};
use support::{floats, rng};

/// Over many seeds, and over many positions, tokens are as likely as softmax says. Σ (seen -
/// expected)² / expected, of n - 1 degrees of freedom, is beyond n - 1 + 2·√((n - 1)·t) + 2·t with
/// a probability below e^-t (Laurent and Massart 2000, lemma 1).
#[test]
fn tokens_are_as_likely_as_softmax_says() {
    const DRAWS: u32 = 40_000;
    let (logits, options) =
        (floats(&mut rng(5), 33, 2.5), SampleOptions::default().temperature(0.8));
    let weights: Vec<f64> =
        logits.iter().map(|&logit| (f64::from(logit) / f64::from(0.8f32)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let by_seed = |n: u32| reference::sample(&logits, u64::from(n), 3, &options).unwrap();
    let by_position = |n: u32| reference::sample(&logits, u64::MAX - 6, n, &options).unwrap();
    for (by, draw) in [("seed", &by_seed as &dyn Fn(u32) -> u32), ("position", &by_position)] {
        let mut seen = [0u32; 33];
        (0..DRAWS).for_each(|n| seen[draw(n) as usize] += 1);
        let expected = weights.iter().map(|weight| weight / sum * f64::from(DRAWS));
        let statistic: f64 = seen
            .iter()
            .zip(expected)
            .map(|(&seen, expected)| (f64::from(seen) - expected).powi(2) / expected)
            .sum();
        let (freedom, t) = (32.0, 14.0f64);
        assert!(statistic < freedom + 2.0 * (freedom * t).sqrt() + 2.0 * t, "by {by}: {statistic}");
    }
}
