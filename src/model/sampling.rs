//! Sampling of the next token.

use crate::error::{Error, Result};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use std::cmp::Ordering;

const OP: &str = "sampling";

/// How the next token is chosen: change the logits by the penalties, take the `top_k` most likely, of these the fewest whose probability at
/// `temperature` reaches `top_p`, of those the ones that are at least `min_p` as likely as the first, and draw one of them at random.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// Divides the logits; 0 means greedy: always the most likely token.
    pub temperature: f32,
    /// The number of candidates; 0 means all.
    pub top_k: usize,
    /// The total probability that the kept candidates must reach, 0 to 1; at least one is kept, and 1 keeps all.
    pub top_p: f32,
    /// Tokens whose probability is less than this share of the most likely one's are left out; 0 keeps all.
    pub min_p: f32,
    /// Divides the logits, where they are positive, of tokens that the text has already, and multiplies the others; 1 changes nothing. The prompt
    /// counts.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that were generated already.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token once for each time that it was generated.
    pub frequency_penalty: f32,
    /// Seeds the random numbers.
    pub seed: u64,
}

impl Sampling {
    /// The most likely token, always.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 0,
    };

    /// Sets [`Sampling::temperature`].
    #[must_use]
    pub fn temperature(self, temperature: f32) -> Self {
        Self { temperature, ..self }
    }

    /// Sets [`Sampling::top_k`].
    #[must_use]
    pub fn top_k(self, top_k: usize) -> Self {
        Self { top_k, ..self }
    }

    /// Sets [`Sampling::top_p`].
    #[must_use]
    pub fn top_p(self, top_p: f32) -> Self {
        Self { top_p, ..self }
    }

    /// Sets [`Sampling::seed`].
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets [`Sampling::min_p`].
    #[must_use]
    pub fn min_p(self, min_p: f32) -> Self {
        Self { min_p, ..self }
    }

    /// Sets [`Sampling::repetition_penalty`].
    #[must_use]
    pub fn repetition_penalty(self, repetition_penalty: f32) -> Self {
        Self { repetition_penalty, ..self }
    }

    /// Sets [`Sampling::presence_penalty`].
    #[must_use]
    pub fn presence_penalty(self, presence_penalty: f32) -> Self {
        Self { presence_penalty, ..self }
    }

    /// Sets [`Sampling::frequency_penalty`].
    #[must_use]
    pub fn frequency_penalty(self, frequency_penalty: f32) -> Self {
        Self { frequency_penalty, ..self }
    }

    /// Do penalties change the logits?
    pub fn penalises(&self) -> bool {
        (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)
    }

    /// Does it always take the most likely token?
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Checks that the numbers are in range.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number that is not.
    pub fn check(&self) -> Result<()> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(invalid(format!("temperature is {}; it must be finite and not negative", self.temperature)));
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return Err(invalid(format!("top_p is {}; it must be from 0 to 1", self.top_p)));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Err(invalid(format!("min_p is {}; it must be from 0 to 1", self.min_p)));
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return Err(invalid(format!("repetition_penalty is {}; it must be finite and positive", self.repetition_penalty)));
        }
        for (name, penalty) in [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)] {
            if !penalty.is_finite() {
                return Err(invalid(format!("{name} is {penalty}; it must be finite")));
            }
        }
        Ok(())
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

/// Draws tokens. It does not know the text, and so applies no penalties: generations do that before. The same options and logits give the same tokens on every platform: the generator is ChaCha8, and the arithmetic is in
/// `f64` without the platform's `exp`.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha8Rng,
    /// Reused between draws.
    candidates: Vec<(u32, f32)>,
    weights: Vec<f64>,
}

impl Sampler {
    /// A sampler with freshly seeded random numbers.
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

    /// Draws one of `candidates`, pairs of a token id and its logit, sorted by falling logit, then by rising id. Probabilities are relative
    /// to the candidates given: pass at least `top_k` of them, or all.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are no candidates, if they are not sorted, if the first logit is not finite, or if another is NaN.
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

    /// Draws a token of the whole vocabulary; `logits` are indexed by token id.
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

    /// The index of the drawn candidate.
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
        // By rounding, `left` passed the end: take the last weight that is not 0.
        self.weights[..kept].iter().rposition(|&weight| weight > 0.0).unwrap_or(0)
    }

    /// How many leading weights are kept: those that it takes to reach `top_p` of their sum, and are at least `min_p` of the first.
    fn nucleus(&self) -> usize {
        let least = f64::from(self.sampling.min_p) * self.weights.first().copied().unwrap_or(0.0);
        let likely = self.weights.iter().position(|&weight| weight < least).unwrap_or(self.weights.len());
        likely.min(self.reaching_top_p())
    }

    fn reaching_top_p(&self) -> usize {
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

/// By falling logit, then by rising id. 0 comes before -0, as in the GPU's top-k.
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

/// e^x for x ≤ 0, within 2 units in the last place and the same on every platform: 2^n · e^r with |r| ≤ ln 2 / 2, e^r by its Taylor series.
/// Results below 2^-1022 are 0.
fn exp(x: f64) -> f64 {
    // ln 2 in two parts. The upper one ends in 21 zero bits, so n times it is exact.
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
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn sampler(temperature: f32, top_k: usize, top_p: f32) -> Sampler {
        Sampler::new(Sampling { temperature, top_k, top_p, seed: 7, ..Sampling::GREEDY }).unwrap()
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
        for min_p in [f32::NAN, -0.1, 1.1] {
            is_invalid(Sampler::new(Sampling::GREEDY.min_p(min_p)), "min_p");
        }
        for penalty in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
            is_invalid(Sampler::new(Sampling::GREEDY.repetition_penalty(penalty)), "repetition_penalty");
        }
        is_invalid(Sampler::new(Sampling::GREEDY.presence_penalty(f32::NAN)), "presence_penalty");
        is_invalid(Sampler::new(Sampling::GREEDY.frequency_penalty(f32::INFINITY)), "frequency_penalty");
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

    /// Draws follow softmax: Σ (seen - expected)² / expected is below the chi-square quantile for 1e-6.
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
        // For five degrees of freedom, the most here.
        assert!(statistic < 35.9, "{statistic}: {seen:?}");
    }

    /// Softmax over the kept logits; 0 for the others.
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
        // Two logits are 0.5: the first is kept.
        agrees(sampler(1.0, 3, 1.0), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3]));
        // Probabilities: 0.477, 0.289, 0.106, 0.106, 0.024.
        agrees(sampler(1.0, 0, 0.4), &LOGITS, &softmax(&LOGITS, 1.0, &[1]));
        agrees(sampler(1.0, 0, 0.5), &LOGITS, &softmax(&LOGITS, 1.0, &[1, 3]));
        agrees(sampler(1.0, 0, 0.85), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3]));
        agrees(sampler(1.0, 0, 0.9), &LOGITS, &softmax(&LOGITS, 1.0, &[0, 1, 3, 5]));
        // The second is 0.607 as likely as the first, the third and fourth 0.22, the fifth 0.05.
        let min_p = |min_p| Sampler::new(Sampling { seed: 7, ..Sampling::GREEDY.temperature(1.0).min_p(min_p) }).unwrap();
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
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, top_k: 50, top_p: 0.95, seed, ..Sampling::GREEDY }).unwrap();
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

    #[test]
    fn rows_and_candidates_agree() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..300 {
            let mut logits: Vec<f32> = (0..rng.random_range(1..200)).map(|_| rng.random_range(-20.0..20.0)).collect();
            logits.iter_mut().skip(1).for_each(|logit| match rng.random_range(0..10) {
                0 => *logit = f32::NEG_INFINITY,
                1 => *logit = 0.0,
                _ => {}
            });
            let temperature = if rng.random_bool(0.5) { 0.0 } else { rng.random_range(1e-30..4.0) };
            let (top_k, top_p, seed) = (rng.random_range(0..220), rng.random_range(0.0..=1.0), rng.random());
            let sampling = Sampling { temperature, top_k, top_p, seed, ..Sampling::GREEDY };
            let (mut a, mut b) = (Sampler::new(sampling).unwrap(), Sampler::new(sampling).unwrap());
            let mut sorted: Vec<_> = (0u32..).zip(logits.iter().copied()).collect();
            sorted.sort_by(order);
            for _ in 0..4 {
                let token = a.sample_logits(&logits).unwrap();
                assert_eq!(token, b.sample(&sorted).unwrap(), "{sampling:?} of {logits:?}");
                assert!(logits[token as usize].is_finite());
                let above = logits.iter().filter(|logit| **logit > logits[token as usize]).count();
                assert!(top_k == 0 || above < top_k, "{sampling:?} of {logits:?}");
            }
        }
    }
}
