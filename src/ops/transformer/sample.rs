//! Samples the next token of every sequence from its logits: top-k (Fan, Lewis, Dauphin 2018, arXiv
//! 1805.04833), top-p (Holtzman et al. 2019, 1904.09751), min-p (Nguyen et al. 2024, 2407.01082),
//! and the Gumbel-max trick, in integers.

use super::{
    cache::CachePositions,
    top_k::{self, TopK, top_k},
};
use crate::{
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, REDUCE, Source},
    },
    ops::{forward::forward, philox::philox, race},
    params,
    shape::Shape,
    wgsl,
};
use std::cmp::Ordering;

params! {
    struct Params {
        count: u32, chunks: u32, passes: u32, pass_index: u32, kind: u32, before: u32, shift: u32, each: u32, skipped: u32, sequences: u32,
        zero: u32
    }
}

/// Threads of a workgroup, and values of a digit.
const THREADS: usize = 256;

/// Logits of a thread: those that share the words of a Philox counter.
const TURNS: usize = 4;

/// Logits that a workgroup looks at.
const CHUNK: usize = THREADS * TURNS;

const fn rows(parts: &'static [Part], extent: u32) -> Source {
    Source::wgsl(parts)
        .workgroup_size([THREADS as u32, 1, 1])
        .tile([extent, 1, 1])
        .constants(&[("TURNS", TURNS as u32)])
}

macro_rules! chunk {
    ($($part:tt),+) => {
        rows(wgsl![REDUCE, "shared/order", "shared/philox", "shared/race", "transformer/sample_row", "transformer/sample_keys", $($part),+], CHUNK as u32)
    };
}

/// Words of a sequence in [`SampleParams`].
const WORDS: usize = 8;

static SAMPLE_LARGEST: Kernel = Kernel::trusted(
    "sample_largest",
    Params::FIELDS,
    &[read("logits", F32), read_write("largest", U32), read_write("bins", U32)],
    &[chunk!("transformer/sample_largest").workgroup_bytes(1024)],
);
static SAMPLE_COUNT: Kernel = Kernel::trusted(
    "sample_count",
    Params::FIELDS,
    &[
        read("logits", F32),
        read("largest", U32),
        read_write("bins", U32),
        read_write("path", U32),
        read("draws", U32),
        read("runs", U32),
    ],
    &[chunk!("transformer/sample_draws", "transformer/sample_path", "transformer/sample_count")
        .workgroup_bytes(5136)],
);
static SAMPLE_TIES: Kernel = Kernel::trusted(
    "sample_ties",
    Params::FIELDS,
    &[
        read("logits", F32),
        read("largest", U32),
        read_write("bins", U32),
        read_write("path", U32),
        read_write("ties", U32),
        read("draws", U32),
        read("runs", U32),
    ],
    &[chunk!("transformer/sample_draws", "transformer/sample_path", "transformer/sample_ties")
        .workgroup_bytes(3088)],
);
static SAMPLE_DRAW: Kernel = Kernel::trusted(
    "sample_draw",
    Params::FIELDS,
    &[
        read("logits", F32),
        read("largest", U32),
        read("path", U32),
        read("ties", U32),
        read("draws", U32),
        read("runs", U32),
        read_write("best", U32),
    ],
    &[chunk!("transformer/sample_draws", "transformer/sample_draw").workgroup_bytes(2048)],
);
static SAMPLE_MERGE: Kernel = Kernel::trusted(
    "sample_merge",
    Params::FIELDS,
    &[read("largest", U32), read("best", U32), read_write("chosen", U32)],
    &[rows(wgsl![REDUCE, "shared/order", "transformer/sample_row", "transformer/sample_merge"], 1)
        .workgroup_bytes(1024)],
);

pub(super) const KERNELS: &[&Kernel] =
    &[&SAMPLE_LARGEST, &SAMPLE_COUNT, &SAMPLE_TIES, &SAMPLE_DRAW, &SAMPLE_MERGE];

/// How [`sample`] chooses for a sequence: of the `top_k` largest logits the fewest, largest first,
/// whose probability reaches `top_p`, of those the ones that are at least `min_p` as likely as the
/// largest, and one of these at random.
///
/// Logits are in order: largest first, 0 before -0, of equal ones the lower id. Probabilities are
/// relative to the `top_k`, at the temperature. They are whole numbers, 2^31 for the largest logit,
/// so that sums are the same in any order; what is 2^-32 as likely as the largest counts for
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleOptions {
    pub(crate) temperature: f32,
    pub(crate) top_k: usize,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
}

impl Default for SampleOptions {
    /// Returns options that keep all tokens, at a temperature of 1.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

impl SampleOptions {
    /// Sets what logits are divided by; 0 takes the largest.
    #[must_use]
    pub fn temperature(self, temperature: f32) -> Self {
        Self { temperature, ..self }
    }

    /// Sets the number of tokens that are kept, the most likely ones; 0 keeps all.
    #[must_use]
    pub fn top_k(self, top_k: usize) -> Self {
        Self { top_k, ..self }
    }

    /// Keeps the fewest tokens, the most likely ones, whose probabilities sum to `top_p`: 0 to 1. At
    /// least one is kept; 1 keeps all.
    #[must_use]
    pub fn top_p(self, top_p: f32) -> Self {
        Self { top_p, ..self }
    }

    /// Drops tokens whose probability is below `min_p` times the largest one: 0 to 1.
    #[must_use]
    pub fn min_p(self, min_p: f32) -> Self {
        Self { min_p, ..self }
    }

    /// Returns whether the largest logit is always taken.
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Checks that the numbers are in range.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |what| Err(Error::Invalid { op: OP, what });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return invalid(format!(
                "temperature is {}; it must be finite and not negative",
                self.temperature
            ));
        }
        for (name, share) in [("top_p", self.top_p), ("min_p", self.min_p)] {
            if !(0.0..=1.0).contains(&share) {
                return invalid(format!("{name} is {share}; it must be from 0 to 1"));
            }
        }
        Ok(())
    }

    /// How many are kept; all where there are no more.
    fn k(&self) -> u32 {
        match self.top_k {
            _ if self.is_greedy() => 1,
            0 => ALL,
            k => u32::try_from(k).unwrap_or(ALL),
        }
    }

    /// `top_p` in units of 2^-32; none where all are kept.
    fn share(&self) -> Option<u32> {
        (self.top_p < 1.0).then_some((f64::from(self.top_p) * 2f64.powi(32)) as u32)
    }

    /// The least weight that is kept.
    fn least(&self) -> u32 {
        (f64::from(self.min_p) * 2f64.powi(31)).ceil() as u32
    }
}

const OP: &str = "sample";

/// Of [`SampleParams`]: no number of tokens, and no share, limits those that are kept.
const ALL: u32 = u32::MAX;

/// The options and seeds by which [`sample`] chooses, a row for each sequence, on the GPU. A
/// sequence's tokens depend on nothing else, so sampling is batch-invariant.
#[derive(Clone, Debug)]
pub struct SampleParams {
    /// `[sequences, 8]`: see `sample_draws.wgsl`.
    table: Tensor<u32>,
    searches: Searches,
}

/// What has to be found for some of the sequences. What is recorded with all that is needed, and
/// more, chooses the same tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Searches {
    /// Whether one draws; otherwise all take the largest logit.
    draws: bool,
    by_number: bool,
    by_weight: bool,
}

#[cfg(feature = "models")]
impl Searches {
    /// Both.
    pub fn or(self, other: Self) -> Self {
        Self {
            draws: self.draws | other.draws,
            by_number: self.by_number | other.by_number,
            by_weight: self.by_weight | other.by_weight,
        }
    }
}

impl SampleParams {
    /// Uploads the options and the seed of each sequence. Every position has its own random numbers
    /// for a seed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options out of range; what the device reports.
    pub fn new(context: &Context, sequences: &[(SampleOptions, u64)]) -> Result<Self> {
        let (words, searches) = Self::read(sequences)?;
        Ok(Self { table: context.upload(&words, [sequences.len(), WORDS])?, searches })
    }

    /// Overwrites them, with those of as many sequences: what was recorded with them chooses by the
    /// new ones then, if it has their searches.
    #[cfg(feature = "models")]
    pub(crate) fn rewrite(&mut self, sequences: &[(SampleOptions, u64)]) -> Result<()> {
        let (words, searches) = Self::read(sequences)?;
        self.table.write(&words)?;
        self.searches = searches;
        Ok(())
    }

    /// What they need.
    #[cfg(feature = "models")]
    pub(crate) fn searches(&self) -> Searches {
        self.searches
    }

    /// Returns the options for a recording with these searches: all that they need, and perhaps more.
    #[cfg(feature = "models")]
    pub(crate) fn with(&self, searches: Searches) -> Self {
        Self { searches, ..self.clone() }
    }

    fn read(sequences: &[(SampleOptions, u64)]) -> Result<(Vec<u32>, Searches)> {
        let (mut words, mut searches) =
            (Vec::with_capacity(WORDS * sequences.len()), Searches::default());
        for (options, seed) in sequences {
            options.check()?;
            let draws = !options.is_greedy();
            searches.draws |= draws;
            searches.by_number |= draws && options.top_k > 0;
            searches.by_weight |= draws && options.share().is_some();
            let scale = if draws { race::scale(options.temperature) } else { 0.0 };
            let least = if draws { options.least() } else { 0 };
            let share = options.share().unwrap_or(ALL);
            words.extend([
                *seed as u32,
                (seed >> 32) as u32,
                scale.to_bits(),
                least,
                options.k(),
                share,
                0,
                0,
            ]);
        }
        Ok((words, searches))
    }

    /// How many sequences there are.
    pub(crate) fn sequences(&self) -> usize {
        self.table.len() / WORDS
    }
}

/// A choice of tokens: what [`sample`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Sample<'a> {
    logits: &'a Tensor<f32>,
    positions: CachePositions<'a>,
    params: &'a SampleParams,
}

/// Chooses a token for every row of `logits` `[rows, vocab]`; the result is `[rows]`. It is
/// [`TopK::NONE`] for a row that has a NaN, or whose largest logit is not finite. The rows come
/// after the last tokens of each sequence of `positions`, as many of each.
///
/// Of the tokens that are kept, the one with the largest logit / temperature + g is taken, where g
/// is Gumbel noise that follows from the seed, the position and the token: it has the probability
/// that softmax gives it, up to 2^-22 of it. All that follows from a logit's difference to the
/// largest is computed in integers, so equal logits give equal tokens on every device.
///
/// Rows that do not fit `positions`, or no sequences, are an [`Error::Invalid`].
pub fn sample<'a>(
    logits: &'a Tensor<f32>,
    positions: CachePositions<'a>,
    params: &'a SampleParams,
) -> Sample<'a> {
    Sample { logits, positions, params }
}

forward!(impl['a] Sample<'a> => overwrite u32);

impl Sample<'_> {
    fn shape(&self) -> Result<Shape> {
        Ok([self.logits.shape().as_matrix().0].into())
    }

    fn record(self, encoder: &mut Encoder, chosen: Out<'_, u32>) -> Result<()> {
        let Self { logits, positions, params } = self;
        let (rows, _) = logits.shape().as_matrix();
        let each = positions.check_last(OP, rows)?;
        if params.sequences() == 0 && rows > 0 {
            return Err(Error::Invalid { op: OP, what: "no sequences".into() });
        }
        chosen.check_shape(OP, [rows].into())?;
        let chosen = chosen.tensor();
        if !params.searches.draws {
            let largest = Tensor::uninit(encoder.context(), [rows, 1])?;
            let ids = chosen.reshape([rows, 1])?;
            return top_k(logits, 1).finite().forward_into(encoder, &largest, &ids);
        }
        Search::new(encoder, self, each)?.record(encoder, self, chosen)
    }
}

/// A pass of a search: the digit, by number or by weight.
#[derive(Clone, Copy)]
struct Pass {
    shift: u32,
    kind: u32,
}

const BY_NUMBER: u32 = 0;
const BY_WEIGHT: u32 = 1;

/// What is recorded of a [`Sample`], and what its dispatches hand on.
struct Search {
    passes: Vec<Pass>,
    params: Params,
    rows: usize,
    largest: Tensor<u32>,
    bins: Tensor<u32>,
    path: Tensor<u32>,
    ties: Tensor<u32>,
    best: Tensor<u32>,
}

impl Search {
    /// Of rows that come after `each` of the last tokens of sequences.
    fn new(encoder: &Encoder, op: Sample<'_>, each: usize) -> Result<Self> {
        let (rows, count) = op.logits.shape().as_matrix();
        let Searches { by_number, by_weight, .. } = op.params.searches;
        let kinds =
            by_number.then_some(BY_NUMBER).into_iter().chain(by_weight.then_some(BY_WEIGHT));
        let passes: Vec<Pass> =
            kinds.flat_map(|kind| [24, 16, 8, 0].map(|shift| Pass { shift, kind })).collect();
        let (n, chunks) = (passes.len(), count.div_ceil(CHUNK).max(1));
        let tensor = |words: usize| Tensor::uninit(encoder.context(), [rows, words]);
        let params = Params {
            count: count as u32,
            chunks: chunks as u32,
            passes: n as u32,
            pass_index: 0,
            kind: 0,
            before: 0,
            shift: 0,
            each: each as u32,
            skipped: (op.positions.tokens - each) as u32,
            sequences: op.params.sequences() as u32,
            zero: 0,
        };
        let (largest, bins, path) =
            (tensor(chunks)?, tensor((2 * THREADS * n).max(1))?, tensor(3 * (n + 1))?);
        Ok(Self {
            passes,
            params,
            rows,
            largest,
            bins,
            path,
            ties: tensor(chunks)?,
            best: tensor(2 * chunks)?,
        })
    }

    fn record(&self, encoder: &mut Encoder, op: Sample<'_>, chosen: &Tensor<u32>) -> Result<()> {
        let Self { largest, bins, path, ties, best, .. } = self;
        let (logits, draws, runs) = (op.logits, &op.params.table, op.positions.sequences);
        // Without any logits there is still a chunk, of nothing.
        let (chunks, rows) =
            ([self.params.chunks as usize * CHUNK, self.rows, 1], [1, self.rows, 1]);
        encoder.dispatch(&SAMPLE_LARGEST, &self.params, &[logits, largest, bins], chunks)?;
        for n in 0..self.passes.len() {
            encoder.dispatch(
                &SAMPLE_COUNT,
                &self.at(n),
                &[logits, largest, bins, path, draws, runs],
                chunks,
            )?;
        }
        if !self.passes.is_empty() {
            encoder.dispatch(
                &SAMPLE_TIES,
                &self.at(self.passes.len()),
                &[logits, largest, bins, path, ties, draws, runs],
                chunks,
            )?;
        }
        encoder.dispatch(
            &SAMPLE_DRAW,
            &self.params,
            &[logits, largest, path, ties, draws, runs, best],
            chunks,
        )?;
        encoder.dispatch(&SAMPLE_MERGE, &self.params, &[largest, best, chosen], rows)
    }

    /// The parameters of pass `n`, or of what follows the last.
    fn at(&self, n: usize) -> Params {
        let before = n.checked_sub(1).map(|before| self.passes[before]);
        // A pass finds the digit before its own, which for a first one is the last: 24 + 8 is 0,
        // modulo 32.
        let pass = self.passes.get(n).copied().unwrap_or(Pass { shift: 24, kind: BY_NUMBER });
        let before = match before {
            None => 0,
            Some(Pass { shift: 24, kind }) => 1 + kind,
            Some(Pass { kind, .. }) => 3 + kind,
        };
        Params { pass_index: n as u32, kind: pass.kind, before, shift: pass.shift, ..self.params }
    }
}

pub(crate) mod host {
    use super::*;

    /// CPU reference of [`sample`](super::sample()), for one row: the same token where the logits are
    /// the same.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options out of range.
    pub fn sample(
        logits: &[f32],
        seed: u64,
        position: u32,
        options: &SampleOptions,
    ) -> Result<u32> {
        options.check()?;
        if options.is_greedy() {
            return Ok(top_k::host::top_k(logits, 1)
                .first()
                .filter(|(_, logit)| logit.is_finite())
                .map_or(TopK::NONE, |winner| winner.0));
        }
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !largest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
            return Ok(TopK::NONE);
        }
        let mut candidates = (0u32..).zip(logits.iter().copied()).collect();
        Ok(draw(&mut candidates, seed, position, options).unwrap_or(TopK::NONE))
    }
}

/// One of some tokens with their logits, none of which is NaN, and the largest of which is finite;
/// none of none. The options are in range, and not greedy.
pub(crate) fn draw(
    candidates: &mut Vec<(u32, f32)>,
    seed: u64,
    position: u32,
    options: &SampleOptions,
) -> Option<u32> {
    let scale = race::scale(options.temperature);
    let &(_, largest) = candidates.iter().min_by(|a, b| order(a, b))?;
    let distance = |logit: f32| race::distance(largest, logit, scale);
    let weight = |logit: f32| race::weight(distance(logit));
    keep_first(candidates, options.top_k);
    if let Some(share) = options.share() {
        candidates.sort_unstable_by(order);
        let sum: u64 = candidates.iter().map(|&(_, logit)| u64::from(weight(logit))).sum();
        let enough = (u128::from(sum) * u128::from(share)).div_ceil(1 << 32).max(1) as u64;
        let mut reached = 0;
        let last = candidates.iter().position(|&(_, logit)| {
            reached += u64::from(weight(logit));
            reached >= enough
        });
        candidates.truncate(last.map_or(candidates.len(), |last| last + 1));
    }
    let (least, mut first) = (options.least(), None);
    // Four tokens share a call.
    let (mut four, mut words) = (u32::MAX, [0; 4]);
    for &(id, logit) in candidates.iter() {
        if least > 0 && weight(logit) < least {
            continue;
        }
        if four != id / 4 {
            four = id / 4;
            words = philox([four, position, 0, 0], [seed as u32, (seed >> 32) as u32]);
        }
        let (distance, word) = (distance(logit), words[id as usize % 4]);
        // Few can still be the first.
        if first.is_none_or(|(time, _)| distance + race::least_noise(word) <= time) {
            let time = (distance + race::noise(word), id);
            first = Some(first.map_or(time, |first| time.min(first)));
        }
    }
    first.map(|(_, id)| id)
}

/// By falling logit, then by rising id. 0 comes before -0, as in [`top_k`](super::top_k::top_k()).
pub(crate) fn order(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Keeps the first `count` (0: all), in any order.
fn keep_first(candidates: &mut Vec<(u32, f32)>, count: usize) {
    if (1..candidates.len()).contains(&count) {
        candidates.select_nth_unstable_by(count - 1, order);
        candidates.truncate(count);
    }
}
