//! A decoding step or a prompt, kernel by kernel, for `bitnet bench --profile`.

use anyhow::Result;
use bitnet_wgpu::{Clock, Recording, model::Model};
use pollster::block_on;
use serde_json::{Value, json};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// What was recorded of a model, in microseconds.
pub struct Profile {
    what: String,
    clock: Clock,
    dispatches: usize,
    /// All dispatches in one pass, as a step runs.
    gpu: f64,
    /// To encode and submit them.
    host: f64,
    kernels: Vec<Kernel>,
}

/// All dispatches of a kernel.
struct Kernel {
    name: &'static str,
    count: usize,
    /// Of them together.
    us: f64,
}

impl Profile {
    /// Of a step of so many sequences, after `past` tokens of each. The model has run before.
    pub fn of_step(model: &Model, sequences: usize, past: usize) -> Result<Self> {
        Self::of(format!("a step of {sequences} after {past} tokens"), &model.record_step(sequences, past)?)
    }

    /// Of a prompt of so many tokens, in one piece.
    pub fn of_prompt(model: &Model, ids: &[u32]) -> Result<Self> {
        Self::of(format!("a prompt of {} tokens", ids.len()), &model.record_prompt(ids)?.0)
    }

    fn of(what: String, step: &Recording) -> Result<Self> {
        const TIMES: u32 = 16;
        // A device is at its clock after a while of work.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            step.submit()?.wait()?;
        }
        let mut times = (0..5).map(|_| Ok(block_on(step.time(TIMES))?)).collect::<Result<Vec<_>>>()?;
        times.sort_by_key(|&(_, time)| time);
        let (clock, gpu) = times[2];
        let mut hosts = (0..9).map(|_| submission(|| Ok(step.submit()?.wait()?), || Ok(step.submit()?))).collect::<Result<Vec<_>>>()?;
        hosts.sort_by(f64::total_cmp);
        let profiles = (0..5).map(|_| Ok(block_on(step.profile())?)).collect::<Result<Vec<_>>>()?;
        let dispatches = profiles[0].steps.len();
        let median = |i: usize| {
            let mut times: Vec<f64> = profiles.iter().map(|profile| us(profile.steps[i].time)).collect();
            times.sort_by(f64::total_cmp);
            times[2]
        };
        let times: Vec<f64> = (0..dispatches).map(median).collect();
        // Passes of their own take longer than dispatches of one: by this much each.
        let pass = ((times.iter().sum::<f64>() - us(gpu)) / dispatches as f64).max(0.0);
        let mut kernels: Vec<Kernel> = Vec::new();
        for (step, time) in profiles[0].steps.iter().zip(&times) {
            let us = time - pass;
            match kernels.iter_mut().find(|kernel| kernel.name == step.kernel) {
                Some(kernel) => (kernel.count, kernel.us) = (kernel.count + 1, kernel.us + us),
                None => kernels.push(Kernel { name: step.kernel, count: 1, us }),
            }
        }
        kernels.sort_by(|a, b| b.us.total_cmp(&a.us));
        Ok(Self { what, clock, dispatches, gpu: us(gpu), host: hosts[4], kernels })
    }

    /// Adds it to the object that `--json` prints.
    pub fn put(&self, object: &mut Value) {
        object["dispatches_per_token"] = self.dispatches.into();
        object["gpu_us_per_token"] = self.gpu.into();
        object["host_us_per_token"] = self.host.into();
        let kernel = |kernel: &Kernel| json!({ "name": kernel.name, "count": kernel.count, "us": kernel.us });
        object["kernels"] = self.kernels.iter().map(kernel).collect();
    }
}

/// How long the host takes to encode and submit a step, while nothing else runs.
fn submission<T>(idle: impl Fn() -> Result<()>, submit: impl Fn() -> Result<T>) -> Result<f64> {
    idle()?;
    let start = Instant::now();
    submit()?;
    Ok(us(start.elapsed()))
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, by the {:?} clock; what a pass costs is taken off", self.what, self.clock)?;
        for Kernel { name, count, us } in &self.kernels {
            writeln!(f, "{us:>9.1} µs  {count:>4} × {:>6.1} µs  {name}", us / *count as f64)?;
        }
        writeln!(f, "{:>9.1} µs  {:>4} dispatches on the GPU", self.gpu, self.dispatches)?;
        write!(f, "{:>9.1} µs  on the host, to encode and submit", self.host)
    }
}
