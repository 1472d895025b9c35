//! Decode steps and prompts of a model: which kernels they spend their time in.

use crate::{
    profile::{Profile, peak},
    random::prompt_of,
};
use anyhow::Result;
use bitnet_wgpu::{Context, model::Model};
use std::fmt;

/// Sizes of the batches whose decode steps are timed. Software adapters leave out the last.
const BATCHES: [usize; 3] = [1, 4, 16];
/// Lengths of the prompts that are timed, in tokens. Software adapters take the first alone.
const PROMPTS: [usize; 3] = [32, 128, 512];
/// Tokens before a decode step.
const PAST: usize = 256;
/// A kernel matters from this share of a step's time on.
const SHARE: f64 = 0.01;

pub struct Steps(Vec<Profile>);

impl Steps {
    pub fn of(model: &Model, context: &Context) -> Result<Self> {
        let peak = peak(context)?;
        let limit = model.config().context;
        let past = PAST.min(limit - 1);
        let software = context.capabilities().software;
        let prompts = if software { &PROMPTS[..1] } else { &PROMPTS };
        let batches = if software { &BATCHES[..2] } else { &BATCHES };
        let prompt =
            |&tokens: &usize| Profile::of_prompt(model, &prompt_of(model, tokens), peak.as_ref());
        let step = |&batch: &usize| Profile::of_step(model, batch, past, peak.as_ref());
        let prompts = prompts.iter().filter(|&&tokens| tokens <= limit).map(prompt);
        Ok(Self(batches.iter().map(step).chain(prompts).collect::<Result<_>>()?))
    }

    /// Returns whether a kernel takes a part of the time of some step that is worth a search.
    pub fn matters(&self, kernel: &str) -> bool {
        self.0.iter().any(|profile| profile.share(kernel) >= SHARE)
    }

    /// Returns, of each step, the faster of two measurements.
    pub fn least(self, again: Self) -> Self {
        let faster = |(a, b): (Profile, Profile)| if a.gpu_us() <= b.gpu_us() { a } else { b };
        Self(self.0.into_iter().zip(again.0).map(faster).collect())
    }

    /// Returns the part of another's time that these steps take, in the geometric mean.
    pub fn ratio(&self, other: &Self) -> f64 {
        let logs = self.0.iter().zip(&other.0).map(|(a, b)| (a.gpu_us() / b.gpu_us()).ln());
        (logs.sum::<f64>() / self.0.len() as f64).exp()
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line =
            |profile: &Profile| format!("{:>10.1} µs  {}\n", profile.gpu_us(), profile.what());
        self.0.iter().try_for_each(|profile| f.write_str(&line(profile)))
    }
}
