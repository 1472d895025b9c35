//! Which token comes next.

use crate::error::{Error, Result};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use std::cmp::Ordering;

const OP: &str = "sampling";

/// How the next token is chosen: the `top_k` most likely, of these the fewest whose probability at `temperature` reaches `top_p`, of these a
/// random one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 always takes the most likely token.
    pub temperature: f32,
    /// So many candidates at most; 0 is all of them.
    pub top_k: usize,
    /// The probability that the candidates must reach together, 0 to 1; at least one is kept, and 1 keeps all.
    pub top_p: f32,
    /// Begins the sequence of random numbers.
    pub seed: u64,
}

impl Sampling {
    /// The most likely token, always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };

    /// Does it always take the most likely token?
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Are the numbers in their domains?
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<()> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(invalid(format!("temperature is {}; it must be finite and not negative", self.temperature)));
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return Err(invalid(format!("top_p is {}; it must be from 0 to 1", self.top_p)));
        }
        Ok(())
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

/// Draws tokens. The same options and the same logits give the same tokens on every platform: the generator is ChaCha8, and the arithmetic is
/// in `f64` without the platform's `exp`.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha8Rng,
    /// Reused between draws.
    candidates: Vec<(u32, f32)>,
    weights: Vec<f64>,
}

impl Sampler {
    /// A sampler at the beginning of its random numbers.
    ///
    /// # Errors
    /// [`Error::Invalid`], see [`Sampling::check`].
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.check()?;
        let rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        Ok(Self { sampling, rng, candidates: Vec::new(), weights: Vec::new() })
    }

    /// Its options.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// One of `candidates`, which are sorted by falling logit, then by rising id. Probabilities are relative to those given: to follow the
    /// options, give at least `top_k`, or all.
    ///
    /// # Errors
    /// [`Error::Invalid`] if none is given, if they are not sorted, if the first logit is not finite, or if another is NaN.
    pub fn sample(&mut self, candidates: &[(u32, f32)]) -> Result<u32> {
        let &[(first, max), ..] = candidates else { return Err(invalid("no candidates".into())) };
        if let Some(&(id, logit)) = candidates.iter().find(|(_, logit)| logit.is_nan()) {
            return Err(invalid(format!("the logit of token {id} is {logit}")));
        }
        if !max.is_finite() {
            return Err(invalid(format!("the highest logit, of token {first}, is {max}")));
        }
        if let Some(pair) = candidates.windows(2).find(|pair| order(&pair[0], &pair[1]).is_gt()) {
            return Err(invalid(format!("candidates {:?} and {:?} are not in order", pair[0], pair[1])));
        }
        if self.sampling.is_greedy() {
            return Ok(first);
        }
        let kept = if self.sampling.top_k == 0 { candidates.len() } else { self.sampling.top_k.min(candidates.len()) };
        Ok(candidates[self.draw(&candidates[..kept])].0)
    }

    /// A token of the whole vocabulary; `logits` are by id.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none, if one is NaN or +∞, or if all are -∞.
    pub fn sample_logits(&mut self, logits: &[f32]) -> Result<u32> {
        if let Some(id) = logits.iter().position(|logit| logit.is_nan()) {
            return Err(invalid(format!("the logit of token {id} is {}", logits[id])));
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend((0u32..).zip(logits.iter().copied()));
        keep_first(&mut candidates, if self.sampling.is_greedy() { 1 } else { self.sampling.top_k });
        let token = self.sample(&candidates);
        self.candidates = candidates;
        token
    }

    /// The place of the chosen candidate.
    fn draw(&mut self, candidates: &[(u32, f32)]) -> usize {
        let (max, temperature) = (f64::from(candidates[0].1), f64::from(self.sampling.temperature));
        self.weights.clear();
        self.weights.extend(candidates.iter().map(|&(_, logit)| exp((f64::from(logit) - max) / temperature)));
        let kept = self.nucleus();
        let total: f64 = self.weights[..kept].iter().sum();
        let mut left = self.rng.random::<f64>() * total;
        for (i, weight) in self.weights[..kept].iter().enumerate() {
            if left < *weight {
                return i;
            }
            left -= weight;
        }
        // Rounding took the last: weights fall, so the last that is not 0.
        self.weights[..kept].iter().rposition(|&weight| weight > 0.0).unwrap_or(0)
    }

    /// The fewest leading weights that reach `top_p` of their sum.
    fn nucleus(&self) -> usize {
        if self.sampling.top_p == 1.0 {
            return self.weights.len();
        }
        let enough = f64::from(self.sampling.top_p) * self.weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let reached = self.weights.iter().position(|weight| {
            sum += weight;
            sum >= enough
        });
        reached.map_or(self.weights.len(), |last| last + 1)
    }
}

/// Falling logits, then rising ids; 0 before -0, as the GPU's top-k has it.
fn order(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Sorts the first `count` (0: all) to the front and drops the rest.
fn keep_first(candidates: &mut Vec<(u32, f32)>, count: usize) {
    if (1..candidates.len()).contains(&count) {
        candidates.select_nth_unstable_by(count - 1, order);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by(order);
}

/// e^x for x ≤ 0, within 2 units in the last place and the same on every platform: 2^n · e^r with |r| ≤ ln 2 / 2, e^r by its series. Results
/// below 2^-1022 are 0.
fn exp(x: f64) -> f64 {
    // The upper part of ln 2 has 21 zero bits at its end, so n times it is exact.
    const LN_2: [f64; 2] = [f64::from_bits(0x3fe6_2e42_fee0_0000), f64::from_bits(0x3dea_39ef_3579_3c76)];
    let n = (x * std::f64::consts::LOG2_E).round();
    if n < -1022.0 {
        return 0.0;
    }
    let r = (x - n * LN_2[0]) - n * LN_2[1];
    let series = (1..=14).rev().fold(1.0, |sum, i| 1.0 + sum * r / f64::from(i));
    series * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

fn invalid(what: String) -> Error {
    Error::Invalid { op: OP, what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampler(temperature: f32, top_k: usize, top_p: f32) -> Sampler {
        Sampler::new(Sampling { temperature, top_k, top_p, seed: 7 }).unwrap()
    }

    fn is_invalid<T: std::fmt::Debug>(result: Result<T>, part: &str) {
        match result {
            Err(Error::Invalid { what, .. }) => assert!(what.contains(part), "{what}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_are_checked() {
        for temperature in [f32::NAN, -0.1, f32::INFINITY] {
            is_invalid(Sampler::new(Sampling { temperature, ..Sampling::GREEDY }), "temperature");
        }
        for top_p in [f32::NAN, -0.1, 1.1] {
            is_invalid(Sampler::new(Sampling { top_p, ..Sampling::GREEDY }), "top_p");
        }
        assert!(Sampler::new(Sampling { temperature: -0.0, top_p: 0.0, ..Sampling::GREEDY }).unwrap().sampling().is_greedy());
    }

    #[test]
    fn bad_logits_are_errors() {
        for temperature in [0.0, 1.0] {
            let mut sampler = sampler(temperature, 0, 1.0);
            is_invalid(sampler.sample(&[]), "no candidates");
            is_invalid(sampler.sample_logits(&[]), "no candidates");
            is_invalid(sampler.sample_logits(&[0.0, f32::NAN, 1.0]), "token 1 is NaN");
            is_invalid(sampler.sample_logits(&[f32::NEG_INFINITY; 3]), "-inf");
            is_invalid(sampler.sample_logits(&[0.0, f32::INFINITY]), "token 1, is inf");
            is_invalid(sampler.sample(&[(0, 1.0), (1, 2.0)]), "not in order");
            is_invalid(sampler.sample(&[(1, 1.0), (0, 1.0)]), "not in order");
            is_invalid(sampler.sample(&[(1, 1.0), (0, f32::NAN)]), "token 0 is NaN");
        }
    }

    #[test]
    fn greedy_takes_the_highest_and_of_equals_the_first() {
        for mut sampler in [sampler(0.0, 0, 1.0), sampler(1.0, 1, 1.0), sampler(1.0, 0, 0.0), sampler(f32::MIN_POSITIVE, 0, 1.0)] {
            assert_eq!(sampler.sample_logits(&[-1.0, 3.0, 2.5]).unwrap(), 1);
        }
        assert_eq!(sampler(0.0, 0, 1.0).sample_logits(&[-0.0, 0.0, 0.0, -1.0]).unwrap(), 1);
        assert_eq!(sampler(2.0, 1, 1.0).sample_logits(&[1.0, 3.0, 3.0]).unwrap(), 1);
    }

    /// Draws agree with softmax: Σ (seen - expected)² / expected is under the chi-square quantile for 1e-6.
    fn agrees(mut sampler: Sampler, logits: &[f32], expected: &[f64]) {
        const DRAWS: usize = 50_000;
        let mut seen = vec![0usize; logits.len()];
        for _ in 0..DRAWS {
            seen[sampler.sample_logits(logits).unwrap() as usize] += 1;
        }
        let mut statistic = 0.0;
        for (&seen, &p) in seen.iter().zip(expected) {
            match p {
                0.0 => assert_eq!(seen, 0),
                _ => statistic += (seen as f64 - p * DRAWS as f64).powi(2) / (p * DRAWS as f64),
            }
        }
        // Five degrees of freedom at most.
        assert!(statistic < 35.9, "{statistic}: {seen:?}");
    }

    /// Probabilities of those logits that are kept.
    fn softmax(logits: &[f32], temperature: f64, kept: &[usize]) -> Vec<f64> {
        let weight = |i: usize| if kept.contains(&i) { (f64::from(logits[i]) / temperature).exp() } else { 0.0 };
        let total: f64 = (0..logits.len()).map(weight).sum();
        (0..logits.len()).map(|i| weight(i) / total).collect()
    }

    const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 1.5, f32::NEG_INFINITY, 0.5];

    #[test]
    fn draws_follow_the_distribution() {
        let all = [0, 1, 2, 3, 4, 5];
        agrees(sampler(1.0, 0, 1.0), &LOGITS, &softmax(&LOGITS, 1.0, &all));
        agrees(sampler(0.7, 0, 1.0), &LOGITS, &softmax(&LOGITS, f64::from(0.7f32), &all));
        agrees(sampler(3.0, 100, 1.0), &LOGITS, &softmax(&LOGITS, 3.0, &all));
        // Of the two at 0.5 the first.
        agrees(sampler(1.0, 3, 1.0), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3]));
        // 0.477, 0.289, 0.106, 0.106, 0.024
        agrees(sampler(1.0, 0, 0.4), &LOGITS, &softmax(&LOGITS, 1.0, &[1]));
        agrees(sampler(1.0, 0, 0.5), &LOGITS, &softmax(&LOGITS, 1.0, &[1, 3]));
        agrees(sampler(1.0, 0, 0.85), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3]));
        agrees(sampler(1.0, 0, 0.9), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3, 5]));
        // Among the first two alone, the first has 0.62.
        agrees(sampler(1.0, 2, 0.6), &LOGITS, &softmax(&LOGITS, 1.0, &[1]));
        agrees(sampler(1.0, 2, 0.7), &LOGITS, &softmax(&LOGITS, 1.0, &[1, 3]));
    }

    #[test]
    fn top_p_stops_where_it_is_reached() {
        // Exact halves: 0.5 is reached by two of four.
        for (top_p, kept) in [(0.0, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4), (1.0, 4)] {
            let mut sampler = sampler(1.0, 0, top_p);
            sampler.draw(&[(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)]);
            assert_eq!(sampler.nucleus(), kept, "{top_p}");
        }
    }

    #[test]
    fn a_seed_gives_these_tokens_everywhere() {
        let logits: Vec<f32> = (0..100).map(|i| ((i * 37) % 100) as f32 / 25.0).collect();
        let draw = |seed| {
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, top_k: 50, top_p: 0.95, seed }).unwrap();
            (0..8).map(|_| sampler.sample_logits(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), [97, 54, 86, 62, 89, 21, 51, 8]);
        assert_eq!(draw(2), [91, 32, 29, 37, 62, 67, 99, 27]);
    }

    #[test]
    fn exp_is_near_the_platforms() {
        for i in 0..100_000 {
            let x = -f64::from(i) * 0.00708;
            let (ours, theirs) = (exp(x), x.exp());
            assert!((ours - theirs).abs() <= 4.0 * f64::EPSILON * theirs, "{x}: {ours} {theirs}");
        }
        assert_eq!((exp(0.0), exp(-0.0), exp(-1e9), exp(f64::NEG_INFINITY)), (1.0, 1.0, 0.0, 0.0));
    }

    proptest! {
        #[test]
        fn rows_and_candidates_agree(
            logits in prop::collection::vec(prop_oneof![8 => -20f32..20.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(0.0)], 1..200),
            temperature in prop_oneof![Just(0.0), 1e-30f32..4.0],
            top_k in 0usize..220,
            top_p in 0f32..=1.0,
            seed: u64,
        ) {
            prop_assume!(logits.iter().any(|logit| logit.is_finite()));
            let sampling = Sampling { temperature, top_k, top_p, seed };
            let (mut a, mut b) = (Sampler::new(sampling).unwrap(), Sampler::new(sampling).unwrap());
            let mut sorted: Vec<_> = (0u32..).zip(logits.iter().copied()).collect();
            sorted.sort_by(order);
            for _ in 0..4 {
                let token = a.sample_logits(&logits).unwrap();
                prop_assert_eq!(token, b.sample(&sorted).unwrap());
                prop_assert!(logits[token as usize].is_finite());
                let above = logits.iter().filter(|logit| **logit > logits[token as usize]).count();
                prop_assert!(top_k == 0 || above < top_k);
            }
        }
    }
}
