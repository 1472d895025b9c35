//! One threshold: which of its values lead to other dispatches, and how long those take.

use super::{
    steps::Steps,
    works::{Dispatched, Work},
};
use crate::say;
use anyhow::Result;
use bitnet_wgpu::{
    Context, Recording,
    telemetry::PeakBandwidth,
    tuning::{Tuning, TuningKey},
};
use pollster::block_on;
use std::collections::BTreeSet;

/// A value is taken that takes at most this part of the time.
const WORTH: f64 = 0.97;

/// What all trials share.
pub struct Search<'a> {
    /// The device with its default thresholds.
    pub usual: &'a Context,
    /// The model's steps, which say what kernels matter.
    pub steps: &'a Steps,
    pub works: &'a [Work],
    /// Rows of the model's matrices, at which thresholds of sizes are tried.
    pub rows: Vec<usize>,
    pub peak: PeakBandwidth,
}

/// A value with its context, and what each piece of work dispatches with it.
type Candidate = (u32, Context, Vec<Dispatched>);

pub struct Trial {
    peak: PeakBandwidth,
    /// The default is the first.
    values: Vec<Value>,
    compared: Vec<Compared>,
}

struct Value {
    value: u32,
    /// Of each compared piece of work, the index of the variant that this value leads to.
    variants: Vec<usize>,
}

/// A piece of work that values dispatch differently.
struct Compared {
    what: String,
    /// Of all copies.
    bytes: usize,
    copies: usize,
    variants: Vec<Variant>,
}

struct Variant {
    dispatched: Dispatched,
    recording: Recording,
    /// Runs of the recording in a measurement.
    times: u32,
    /// Of each round.
    seconds: Vec<f64>,
}

impl Trial {
    /// Returns the trial of a threshold, given the values that were taken for others.
    pub fn new(search: &Search, taken: &Tuning, key: TuningKey) -> Result<Self> {
        let candidates = candidates(search, taken, key)?;
        let values = candidates.iter().map(|&(value, ..)| Value { value, variants: Vec::new() });
        let mut trial = Self { peak: search.peak, values: values.collect(), compared: Vec::new() };
        for (n, work) in search.works.iter().enumerate() {
            let default = &candidates[0].2[n];
            let differs = candidates.iter().any(|(.., all)| all[n] != *default);
            // A quantizer may come first; the last kernel is that of the work.
            let matters = default.last().is_some_and(|(kernel, ..)| search.steps.matters(kernel));
            if !differs || !matters {
                continue;
            }
            let (mut compared, chosen) = Compared::new(work, &candidates, n)?;
            compared.round()?;
            if !compared.is_below(&search.peak) {
                say(format!("\n{}: above peak bandwidth, so in a cache; skipped", compared.what))?;
                continue;
            }
            trial.values.iter_mut().zip(chosen).for_each(|(value, n)| value.variants.push(n));
            trial.compared.push(compared);
        }
        Ok(trial)
    }

    /// Returns whether no value changes what the model dispatches.
    pub fn is_empty(&self) -> bool {
        self.compared.is_empty()
    }

    /// Returns the number of shapes for which values differ.
    pub fn shapes(&self) -> usize {
        self.compared.len()
    }

    /// Returns the values that are tried, the default first.
    pub fn values(&self) -> impl Iterator<Item = u32> {
        self.values.iter().map(|value| value.value)
    }

    /// Returns, for each value and round, its part of the default's time: the geometric mean over
    /// all shapes.
    pub fn rounds(&mut self, rounds: u32) -> Result<Vec<Vec<f64>>> {
        let variants = self.compared.iter_mut().flat_map(|compared| &mut compared.variants);
        variants.for_each(|variant| variant.seconds.clear());
        for _ in 0..rounds {
            self.compared.iter_mut().try_for_each(Compared::round)?;
        }
        let ratio = |value: &Value, round: usize| {
            let logs = self.compared.iter().enumerate().map(|(n, compared)| {
                let seconds = |value: &Value| compared.variants[value.variants[n]].seconds[round];
                (seconds(value) / seconds(&self.values[0])).ln()
            });
            (logs.sum::<f64>() / self.compared.len() as f64).exp()
        };
        let all = |value| (0..rounds as usize).map(|round| ratio(value, round)).collect();
        Ok(self.values.iter().map(all).collect())
    }

    /// Returns the times of each shape, a line each.
    pub fn figures(&self) -> String {
        let variant = |compared: &Compared, variant: &Variant| {
            let seconds = median(&variant.seconds);
            let kernel = variant.dispatched.last().map_or("", |(name, ..)| name);
            let (count, us) = (variant.dispatched.len(), seconds / compared.copies as f64 * 1e6);
            let share = self.peak.share(compared.bytes, seconds);
            let share = share.map_or("above the peak".into(), |s| format!("{:.1} %", 100.0 * s));
            format!(" {kernel} ×{count} {us:.1} µs {share};")
        };
        let line = |compared: &Compared| {
            let variants: String =
                compared.variants.iter().map(|found| variant(compared, found)).collect();
            format!("    {}:{variants}\n", compared.what)
        };
        self.compared.iter().map(line).collect()
    }
}

/// Returns the values of a threshold that differ in what they dispatch, the default first.
fn candidates(search: &Search, taken: &Tuning, key: TuningKey) -> Result<Vec<Candidate>> {
    let now = search.usual.capabilities().tuned(key) as u32;
    let near = (-3..=3).map(|power| (f64::from(now) * 2f64.powi(power)) as u32);
    let ends = [*key.range().start(), *key.range().end()];
    let at_rows = search.rows.iter().flat_map(|&rows| [rows as u32, rows as u32 + 1]);
    let others = near.chain(ends).chain(at_rows);
    let others = others.filter(|value| key.range().contains(value) && *value != now);
    let mut candidates: Vec<Candidate> = Vec::new();
    for value in [now].into_iter().chain(others.collect::<BTreeSet<u32>>()) {
        let mut tuning = taken.clone();
        tuning.set(key, value)?;
        let context = search.usual.restricted(|c| c.tuning = tuning);
        let all = search.works.iter().map(|work| work.dispatched(&context));
        let all = all.collect::<Result<Vec<_>>>()?;
        if candidates.iter().all(|(.., other)| *other != all) {
            candidates.push((value, context, all));
        }
    }
    Ok(candidates)
}

impl Compared {
    /// Returns the `n`-th piece of work with its variants, and which of them each candidate has.
    fn new(work: &Work, candidates: &[Candidate], n: usize) -> Result<(Self, Vec<usize>)> {
        let mut variants: Vec<Variant> = Vec::new();
        let mut chosen = Vec::new();
        for (_, context, all) in candidates {
            let known = variants.iter().position(|variant| variant.dispatched == all[n]);
            chosen.push(known.unwrap_or(variants.len()));
            if known.is_none() {
                let recording = (work.record)(context, work.copies)?;
                block_on(recording.time(1))?; // compiles
                let (_, once) = block_on(recording.time(1))?;
                let times = (0.004 / once.as_secs_f64().max(1e-6)).clamp(1.0, 50.0) as u32;
                let dispatched = all[n].clone();
                variants.push(Variant { dispatched, recording, times, seconds: Vec::new() });
            }
        }
        let (what, bytes) = (work.what.clone(), work.bytes * work.copies);
        Ok((Self { what, bytes, copies: work.copies, variants }, chosen))
    }

    fn round(&mut self) -> Result<()> {
        for variant in &mut self.variants {
            let (_, time) = block_on(variant.recording.time(variant.times))?;
            variant.seconds.push(time.as_secs_f64().max(1e-9));
        }
        Ok(())
    }

    /// Returns whether memory can deliver the bytes as fast as the first round took them.
    fn is_below(&self, peak: &PeakBandwidth) -> bool {
        self.variants.iter().all(|v| peak.share(self.bytes, v.seconds[0]).is_some())
    }
}

pub fn median(ratios: &[f64]) -> f64 {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Returns whether these parts of the default's time, one a round, are worth another value.
pub fn is_better(ratios: &[f64]) -> bool {
    ratios.iter().all(|&ratio| ratio < 1.0) && median(ratios) <= WORTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_better_in_every_round() {
        assert!(is_better(&[0.9, 0.96, 0.99]));
        assert!(!is_better(&[0.8, 0.8, 1.0]));
        assert!(!is_better(&[0.98, 0.98, 0.9]));
    }
}
