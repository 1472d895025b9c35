//! Sampling of the next token.

use crate::{
    error::{Error, Result},
    ops::transformer::{
        Penalties, SampleOptions,
        sample::{draw, order},
    },
};

/// How the next token is chosen. Penalties change the logits; temperature, top-k, top-p and min-p
/// then decide from which tokens one is drawn. The default is [`Sampling::GREEDY`].
///
/// ```
/// use bitnet_wgpu::model::{GenerateOptions, Sampling};
///
/// let sampling = Sampling::GREEDY.temperature(0.7).top_p(0.9).seed(1);
/// let options = GenerateOptions::default().sampling(sampling);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    pub(crate) options: SampleOptions,
    pub(crate) penalties: Penalties,
    pub(crate) seed: u64,
}

impl Sampling {
    /// Always takes the most likely token.
    pub const GREEDY: Self = Self {
        options: SampleOptions { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
        penalties: Penalties::NONE,
        seed: 0,
    };

    /// Sets what logits are divided by; 0 takes the most likely token.
    #[must_use]
    pub fn temperature(self, temperature: f32) -> Self {
        Self { options: self.options.temperature(temperature), ..self }
    }

    /// Sets the number of tokens that are kept, the most likely ones; 0 keeps all.
    #[must_use]
    pub fn top_k(self, top_k: usize) -> Self {
        Self { options: self.options.top_k(top_k), ..self }
    }

    /// Keeps the fewest tokens, the most likely ones, whose probabilities sum to `top_p`: 0 to 1. At
    /// least one is kept; 1 keeps all.
    #[must_use]
    pub fn top_p(self, top_p: f32) -> Self {
        Self { options: self.options.top_p(top_p), ..self }
    }

    /// Drops tokens whose probability is below `min_p` times the largest one: 0 to 1.
    #[must_use]
    pub fn min_p(self, min_p: f32) -> Self {
        Self { options: self.options.min_p(min_p), ..self }
    }

    /// Sets the seed of random numbers. Those of a token follow from the seed, the token's place in
    /// the text and its id, so equal logits give equal tokens on every device.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets the divisor of positive logits, and factor of negative ones, of tokens that the prompt or
    /// the answer has; 1 changes nothing.
    #[must_use]
    pub fn repetition_penalty(self, repetition: f32) -> Self {
        Self { penalties: self.penalties.repetition(repetition), ..self }
    }

    /// Sets what is subtracted from the logits of tokens that the answer has; 0 changes nothing.
    #[must_use]
    pub fn presence_penalty(self, presence: f32) -> Self {
        Self { penalties: self.penalties.presence(presence), ..self }
    }

    /// Sets what is subtracted from the logit of a token each time that the answer has it; 0 changes
    /// nothing.
    #[must_use]
    pub fn frequency_penalty(self, frequency: f32) -> Self {
        Self { penalties: self.penalties.frequency(frequency), ..self }
    }

    /// Returns whether penalties change the logits.
    pub(crate) fn penalises(&self) -> bool {
        self.penalties != Penalties::NONE
    }

    /// Returns whether it always takes the most likely token.
    pub(crate) fn is_greedy(&self) -> bool {
        self.options.is_greedy()
    }

    /// Checks that the numbers are in range.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number that is not.
    pub(crate) fn check(&self) -> Result<()> {
        self.options.check()?;
        self.penalties.check()
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

/// Draws tokens, by the rule of [`transformer::sample`](crate::transformer::sample()). It does not
/// know the text, and so applies no penalties: generations do that before. Its random numbers are
/// those of positions from 0 on, one for each token that it draws: the same options and logits give
/// the same tokens on every platform.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    position: u32,
    /// Reused between draws.
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// Returns a sampler that has drawn nothing yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number that is out of range.
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.check()?;
        Ok(Self { sampling, position: 0, candidates: Vec::new() })
    }

    /// Returns the options.
    pub(crate) fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Draws the next token with the random numbers of this position.
    pub(crate) fn at(&mut self, position: u32) -> &mut Self {
        self.position = position;
        self
    }

    /// Draws a token of the whole vocabulary; `logits` are indexed by token id.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none, if one is NaN or +∞, or if all are -∞.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        if let Some(id) = logits.iter().position(|logit| logit.is_nan()) {
            return Err(invalid(format!("the logit of token {id} is {}", logits[id])));
        }
        self.candidates.clear();
        self.candidates.extend((0u32..).zip(logits.iter().copied()));
        let Some(&(first, largest)) = self.candidates.iter().min_by(|a, b| order(a, b)) else {
            return Err(invalid("no logits".into()));
        };
        if !largest.is_finite() {
            return Err(invalid(format!("the highest logit, of token {first}, is {largest}")));
        }
        let position = self.position;
        self.position = position.wrapping_add(1);
        if self.sampling.is_greedy() {
            return Ok(first);
        }
        Ok(draw(&mut self.candidates, self.sampling.seed, position, &self.sampling.options)
            .unwrap_or(first))
    }
}

fn invalid(what: String) -> Error {
    Error::Invalid { op: "sampling", what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{reference, transformer::TopK};
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeSet;

    fn sampler(temperature: f32, top_k: usize, top_p: f32) -> Sampler {
        Sampler::new(Sampling::GREEDY.temperature(temperature).top_k(top_k).top_p(top_p).seed(7))
            .unwrap()
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
            is_invalid(Sampler::new(Sampling::GREEDY.temperature(temperature)), "temperature");
        }
        for top_p in [f32::NAN, -0.1, 1.1] {
            is_invalid(Sampler::new(Sampling::GREEDY.top_p(top_p)), "top_p");
        }
        for min_p in [f32::NAN, -0.1, 1.1] {
            is_invalid(Sampler::new(Sampling::GREEDY.min_p(min_p)), "min_p");
        }
        for penalty in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
            is_invalid(
                Sampler::new(Sampling::GREEDY.repetition_penalty(penalty)),
                "repetition_penalty",
            );
        }
        is_invalid(Sampler::new(Sampling::GREEDY.presence_penalty(f32::NAN)), "presence_penalty");
        is_invalid(
            Sampler::new(Sampling::GREEDY.frequency_penalty(f32::INFINITY)),
            "frequency_penalty",
        );
        assert!(
            Sampler::new(Sampling::GREEDY.temperature(-0.0).top_p(0.0))
                .unwrap()
                .sampling()
                .is_greedy()
        );
    }

    #[test]
    fn bad_logits_are_errors() {
        for temperature in [0.0, 1.0] {
            let mut sampler = sampler(temperature, 0, 1.0);
            is_invalid(sampler.sample(&[]), "no logits");
            is_invalid(sampler.sample(&[0.0, f32::NAN, 1.0]), "token 1 is NaN");
            is_invalid(sampler.sample(&[f32::NEG_INFINITY; 3]), "-inf");
            is_invalid(sampler.sample(&[0.0, f32::INFINITY]), "token 1, is inf");
        }
    }

    /// An engine that chooses tokens refuses these too.
    #[test]
    fn bad_logits_have_no_token() {
        let bad = [&[][..], &[0.0, f32::NAN, 1.0], &[f32::NEG_INFINITY; 3], &[0.0, f32::INFINITY]];
        for (logits, temperature) in
            bad.into_iter().flat_map(|logits| [(logits, 0.0), (logits, 1.0)])
        {
            let options = SampleOptions::default().temperature(temperature);
            assert_eq!(
                reference::sample(logits, 1, 2, &options).unwrap(),
                TopK::NONE,
                "{logits:?} at {temperature}"
            );
        }
    }

    #[test]
    fn greedy_takes_the_first_maximum() {
        for mut sampler in [
            sampler(0.0, 0, 1.0),
            sampler(1.0, 1, 1.0),
            sampler(1.0, 0, 0.0),
            sampler(f32::MIN_POSITIVE, 0, 1.0),
        ] {
            assert_eq!(sampler.sample(&[-1.0, 3.0, 2.5]).unwrap(), 1);
        }
        assert_eq!(sampler(0.0, 0, 1.0).sample(&[-0.0, 0.0, 0.0, -1.0]).unwrap(), 1);
        assert_eq!(sampler(2.0, 1, 1.0).sample(&[1.0, 3.0, 3.0]).unwrap(), 1);
    }

    /// Draws follow softmax: Σ (seen - expected)² / expected is below the chi-square quantile for
    /// 1e-6.
    fn agrees(mut sampler: Sampler, logits: &[f32], expected: &[f64]) {
        const DRAWS: usize = 50_000;
        let mut seen = vec![0usize; logits.len()];
        for _ in 0..DRAWS {
            seen[sampler.sample(logits).unwrap() as usize] += 1;
        }
        let mut statistic = 0.0;
        for (&seen, &p) in seen.iter().zip(expected) {
            match p {
                0.0 => assert_eq!(seen, 0),
                _ => statistic += (seen as f64 - p * DRAWS as f64).powi(2) / (p * DRAWS as f64),
            }
        }
        // For five degrees of freedom, the most here.
        assert!(statistic < 35.9, "{statistic}: {seen:?}");
    }

    /// Softmax over the kept logits; 0 for the others.
    fn softmax(logits: &[f32], temperature: f64, kept: &[usize]) -> Vec<f64> {
        let weight = |i: usize| {
            if kept.contains(&i) { (f64::from(logits[i]) / temperature).exp() } else { 0.0 }
        };
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
        // Two logits are 0.5: the first is kept.
        agrees(sampler(1.0, 3, 1.0), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3]));
        // Probabilities: 0.477, 0.289, 0.106, 0.106, 0.024.
        agrees(sampler(1.0, 0, 0.4), &LOGITS, &softmax(&LOGITS, 1.0, &[1]));
        agrees(sampler(1.0, 0, 0.5), &LOGITS, &softmax(&LOGITS, 1.0, &[1, 3]));
        agrees(sampler(1.0, 0, 0.85), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3]));
        agrees(sampler(1.0, 0, 0.9), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3, 5]));
        // The second is 0.607 as likely as the first, the third and fourth 0.22, the fifth 0.05.
        let min_p =
            |min_p| Sampler::new(Sampling::GREEDY.temperature(1.0).min_p(min_p).seed(7)).unwrap();
        agrees(min_p(0.6), &LOGITS, &softmax(&LOGITS, 1.0, &[1, 3]));
        agrees(min_p(0.62), &LOGITS, &softmax(&LOGITS, 1.0, &[1]));
        agrees(min_p(0.2), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3, 5]));
        // Of the first two alone, the first has probability 0.62.
        agrees(sampler(1.0, 2, 0.6), &LOGITS, &softmax(&LOGITS, 1.0, &[1]));
        agrees(sampler(1.0, 2, 0.7), &LOGITS, &softmax(&LOGITS, 1.0, &[1, 3]));
    }

    #[test]
    fn top_p_stops_where_it_is_reached() {
        // Four equal weights, whose sums are exact: two of four reach 0.5.
        for (top_p, kept) in
            [(0.0, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4), (1.0, 4)]
        {
            let mut sampler = sampler(1.0, 0, top_p);
            let drawn: BTreeSet<u32> =
                (0..200).map(|_| sampler.sample(&[1.0; 4]).unwrap()).collect();
            assert_eq!(drawn, (0..kept).collect(), "{top_p}");
        }
    }

    #[test]
    fn a_seed_gives_these_tokens_everywhere() {
        let logits: Vec<f32> = (0..100).map(|i| ((i * 37) % 100) as f32 / 25.0).collect();
        let draw = |seed| {
            let mut sampler =
                Sampler::new(Sampling::GREEDY.temperature(1.0).top_k(50).top_p(0.95).seed(seed))
                    .unwrap();
            (0..8).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
        };
        // Those of the rule in real numbers, computed in Python.
        assert_eq!(draw(1), [53, 32, 2, 70, 72, 81, 62, 2]);
        assert_eq!(draw(2), [24, 56, 75, 59, 78, 35, 35, 89]);
    }

    #[test]
    fn sampled_tokens_are_finite_and_within_top_k() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..300 {
            let mut logits: Vec<f32> =
                (0..rng.random_range(1..200)).map(|_| rng.random_range(-20.0..20.0)).collect();
            logits.iter_mut().skip(1).for_each(|logit| match rng.random_range(0..10) {
                0 => *logit = f32::NEG_INFINITY,
                1 => *logit = 0.0,
                _ => {}
            });
            let temperature = if rng.random_bool(0.5) { 0.0 } else { rng.random_range(1e-30..4.0) };
            let (top_k, top_p, seed) =
                (rng.random_range(0..220), rng.random_range(0.0..=1.0), rng.random());
            let sampling =
                Sampling::GREEDY.temperature(temperature).top_k(top_k).top_p(top_p).seed(seed);
            let mut sampler = Sampler::new(sampling).unwrap();
            for _ in 0..4 {
                let token = sampler.sample(&logits).unwrap();
                assert!(logits[token as usize].is_finite());
                let above = logits.iter().filter(|logit| **logit > logits[token as usize]).count();
                assert!(top_k == 0 || above < top_k, "{sampling:?} of {logits:?}");
            }
        }
    }
}
