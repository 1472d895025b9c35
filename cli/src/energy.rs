//! What a token takes in energy, by what the system says of the GPUs.

use crate::random::prompt_of;
use anyhow::{Context as _, Result};
use bitnet_wgpu::{
    Context,
    model::{GenerateOptions, Model},
    telemetry::Health,
};
use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// Decoding goes on for so long.
const LONG: Duration = Duration::from_secs(3);

/// Drivers renew what they say of power and energy some ten times a second: of less than this they
/// say too little.
const SHORT: Duration = Duration::from_secs(1);

/// Between readings of power.
const PAUSE: Duration = Duration::from_millis(100);

/// Joules a token, and who said so.
pub struct Energy {
    pub joules: f64,
    pub source: String,
}

/// What the GPUs' systems say at a moment, in all; `None` where one does not say it.
#[derive(Clone, Copy)]
struct Sum {
    joules: Option<f64>,
    watts: Option<f64>,
}

impl Sum {
    fn of(healths: &[Health]) -> Self {
        let sum = |value: fn(&Health) -> Option<f64>| {
            healths.iter().map(value).sum::<Option<f64>>().filter(|_| !healths.is_empty())
        };
        Self {
            joules: sum(|health| Some(health.energy.as_ref()?.value)),
            watts: sum(|health| Some(health.power.as_ref()?.value)),
        }
    }
}

/// Joules that were taken in this many seconds: by counters of energy, else by the mean of what was
/// said of power meanwhile.
fn taken(sums: &[Sum], seconds: f64) -> Option<(f64, &'static str)> {
    let first = sums.first()?;
    let last = sums.last()?;
    // A counter that began anew, or that nobody renews, says nothing.
    let counted = last
        .joules
        .zip(first.joules)
        .map(|(last, first)| last - first)
        .filter(|&joules| joules > 0.0);
    let watts = || Some(sums.iter().map(|sum| sum.watts).sum::<Option<f64>>()? / sums.len() as f64);
    counted
        .map(|joules| (joules, "energy counter"))
        .or_else(|| Some((watts()? * seconds, "mean power")))
}

/// Decodes for three seconds after this many tokens, or to the end of the context: energy a token, or
/// why nobody knows it.
pub fn per_token(
    model: &Model,
    contexts: &[Context],
    prompt: usize,
    options: GenerateOptions,
) -> Result<Result<Energy, &'static str>> {
    let healths = || contexts.iter().map(Context::health).collect::<Vec<_>>();
    let room = model.config().context.saturating_sub(prompt);
    let mut generation =
        model.generate_ids(&prompt_of(model, prompt), &options.max_tokens(room))?.into_iter();
    generation.next().context("no token")??;
    let first = Sum::of(&healths());
    let start = Instant::now();
    let (stop, stopped) = mpsc::channel::<()>();
    let (decoded, mut sums) = thread::scope(|scope| {
        // Beside the decoding, which readings are not to hold up.
        let reader = scope.spawn(move || {
            let mut sums = vec![first];
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                sums.push(Sum::of(&healths()));
            }
            sums
        });
        let while_it_lasts = generation.by_ref().take_while(|_| start.elapsed() < LONG);
        let decoded = while_it_lasts.map(|token| token.map(|_| 1)).sum::<Result<u32, _>>();
        drop(stop);
        (decoded, reader.join().expect("readings do not panic"))
    });
    let tokens = decoded?;
    let seconds = start.elapsed().as_secs_f64();
    let last = healths();
    sums.push(Sum::of(&last));
    let Some((joules, how)) = taken(&sums, seconds) else {
        return Ok(Err("not reported by the system"));
    };
    if seconds < SHORT.as_secs_f64() {
        return Ok(Err("the context is too short to measure it"));
    }
    let reading =
        last[0].energy.as_ref().filter(|_| how == "energy counter").or(last[0].power.as_ref());
    let source = format!("{}, {how}", reading.map_or("", |reading| &reading.source));
    Ok(Ok(Energy { joules: joules / f64::from(tokens.max(1)), source }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(of: &[(Option<f64>, Option<f64>)]) -> Vec<Sum> {
        of.iter().map(|&(joules, watts)| Sum { joules, watts }).collect()
    }

    #[test]
    fn counters_come_before_power() {
        let all = sums(&[
            (Some(1000.0), Some(100.0)),
            (Some(1250.0), Some(300.0)),
            (Some(1600.0), Some(500.0)),
        ]);
        assert_eq!(taken(&all, 2.0), Some((600.0, "energy counter")));
        // One that stands still, begins anew, or is not there at an end.
        for (first, last) in
            [(Some(5.0), Some(5.0)), (Some(9.0), Some(2.0)), (None, Some(7.0)), (Some(7.0), None)]
        {
            let all = sums(&[(first, Some(100.0)), (Some(8.0), Some(300.0)), (last, Some(500.0))]);
            assert_eq!(taken(&all, 2.0), Some((600.0, "mean power")));
        }
    }

    #[test]
    fn what_nobody_says_is_not_made_up() {
        assert_eq!(
            taken(&sums(&[(None, Some(100.0)), (None, None), (None, Some(100.0))]), 2.0),
            None
        );
        let none = Sum::of(&[]);
        assert!(none.joules.is_none() && none.watts.is_none());
        let unknown = Sum::of(&[Health::default()]);
        assert!(unknown.joules.is_none() && unknown.watts.is_none());
    }
}
