//! A decoding step or a prompt, kernel by kernel, for `--profile` of `bitnet bench` and
//! `bitnet run`, and for `bitnet tune`.

use crate::counted;
use anyhow::{Result, bail};
use bitnet_wgpu::{
    Context, Error, Recording,
    internals::ModelInternals as _,
    model::Model,
    telemetry::{Clock, PeakBandwidth},
};
use pollster::block_on;
use serde_json::{Value, json};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// The GPU whose kernels are timed, before a model is loaded to it.
pub fn device(contexts: &[Context]) -> Result<&Context> {
    match contexts {
        [context] => Ok(context),
        [] => bail!("--profile: needs a GPU; --gpu chooses one"),
        _ => bail!("--profile: needs a single GPU"),
    }
}

/// Measures the peak bandwidth of a device, if there is room for it.
pub fn peak(context: &Context) -> Result<Option<PeakBandwidth>> {
    match block_on(PeakBandwidth::measure(context)) {
        // It reads a tensor that is larger than caches, and may be larger than the limit.
        Err(Error::MemoryLimit { .. }) => Ok(None),
        peak => Ok(Some(peak?)),
    }
}

/// A text's prompt, and a step of its decoding.
pub struct OfText {
    peak: Option<PeakBandwidth>,
    prompt: Profile,
    step: Profile,
}

impl OfText {
    /// Of a prompt and this many tokens after it, which a model has just generated: all of the prompt
    /// in one piece, and the step in the middle of them.
    pub fn new(model: &Model, context: &Context, prompt: &[u32], generated: usize) -> Result<Self> {
        let peak = peak(context)?;
        let past = (prompt.len() + generated / 2).min(model.config().context - 1);
        let prompt = Profile::of_prompt(model, prompt, peak.as_ref())?;
        let step = Profile::of_step(model, 1, past, peak.as_ref())?;
        Ok(Self { peak, prompt, step })
    }

    /// For `--json`.
    pub fn object(&self) -> Value {
        let peak = self.peak.map(|peak| peak.bytes_per_second);
        json!({ "peak_bytes_per_second": peak, "prompt": self.prompt.object(), "step": self.step.object() })
    }
}

impl fmt::Display for OfText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.prompt, self.step)
    }
}

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
    /// Bytes a second that the device reads at most, where that was measured.
    peak: Option<f64>,
}

/// All dispatches of a kernel.
struct Kernel {
    name: &'static str,
    count: usize,
    /// Of them together.
    us: f64,
    /// What is bound to them, once a dispatch: what they read and write, or more, of tables and of
    /// a cache that is not full.
    bytes: u64,
}

impl Kernel {
    /// Bytes a second, and their share of the peak. None where passes that are taken off are all of
    /// the time; and none above the peak, where more is bound than was read, or a cache had it.
    fn rate(&self, peak: Option<f64>) -> Option<(f64, Option<f64>)> {
        let rate = (self.us > 0.0).then(|| self.bytes as f64 / (self.us * 1e-6))?;
        let share = peak.map(|peak| rate / peak);
        share.is_none_or(|share| share <= 1.0).then_some((rate, share))
    }
}

impl Profile {
    /// Of a step of this many sequences, after `past` tokens of each. The model has run before.
    pub fn of_step(
        model: &Model,
        sequences: usize,
        past: usize,
        peak: Option<&PeakBandwidth>,
    ) -> Result<Self> {
        Self::of(
            format!("decode step of a batch of {sequences} after {}", counted(past, "token")),
            &model.record_step(sequences, past)?,
            peak,
        )
    }

    /// Of a prompt of this many tokens, in one chunk.
    pub fn of_prompt(model: &Model, ids: &[u32], peak: Option<&PeakBandwidth>) -> Result<Self> {
        let what = format!("prompt of {}", counted(ids.len(), "token"));
        Self::of(what, &model.record_prompt(ids)?.0, peak)
    }

    fn of(what: String, step: &Recording, peak: Option<&PeakBandwidth>) -> Result<Self> {
        // A device is at its clock after a while of work.
        let (start, mut runs) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(500) {
            step.submit()?.wait()?;
            runs += 1;
        }
        let runs = (runs / 2).clamp(1, 16);
        let mut times =
            (0..5).map(|_| Ok(block_on(step.time(runs))?)).collect::<Result<Vec<_>>>()?;
        times.sort_by_key(|&(_, time)| time);
        let (clock, gpu) = times[2];
        let mut hosts = (0..9)
            .map(|_| submission(|| Ok(step.submit()?.wait()?), || Ok(step.submit()?)))
            .collect::<Result<Vec<_>>>()?;
        hosts.sort_by(f64::total_cmp);
        let profiles = (0..5).map(|_| Ok(block_on(step.profile())?)).collect::<Result<Vec<_>>>()?;
        let dispatches = profiles[0].steps.len();
        let median = |i: usize| {
            let mut times: Vec<f64> =
                profiles.iter().map(|profile| us(profile.steps[i].time)).collect();
            times.sort_by(f64::total_cmp);
            times[2]
        };
        let times: Vec<f64> = (0..dispatches).map(median).collect();
        // Passes of their own take longer than dispatches of one: by this much each.
        let pass = ((times.iter().sum::<f64>() - us(gpu)) / dispatches as f64).max(0.0);
        let mut kernels: Vec<Kernel> = Vec::new();
        for ((timed, time), dispatch) in profiles[0].steps.iter().zip(&times).zip(step.dispatches())
        {
            let us = time - pass;
            let bytes = dispatch.bytes().iter().sum::<u64>();
            match kernels.iter_mut().find(|kernel| kernel.name == timed.kernel) {
                Some(kernel) => {
                    (kernel.count, kernel.us, kernel.bytes) =
                        (kernel.count + 1, kernel.us + us, kernel.bytes + bytes)
                }
                None => kernels.push(Kernel { name: timed.kernel, count: 1, us, bytes }),
            }
        }
        kernels.sort_by(|a, b| b.us.total_cmp(&a.us));
        Ok(Self {
            what,
            clock,
            dispatches,
            gpu: us(gpu),
            host: hosts[4],
            kernels,
            peak: peak.map(|peak| peak.bytes_per_second),
        })
    }

    /// Returns what was timed, such as a decode step.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns the time of all dispatches in one pass, in microseconds.
    pub fn gpu_us(&self) -> f64 {
        self.gpu
    }

    /// Returns the share of a kernel in the time of all kernels.
    pub fn share(&self, kernel: &str) -> f64 {
        let total: f64 = self.kernels.iter().map(|kernel| kernel.us).sum();
        let us = self.kernels.iter().find(|timed| timed.name == kernel).map(|timed| timed.us);
        us.map_or(0.0, |us| us / total)
    }

    /// Adds that of a step to the object that `--json` prints.
    pub fn put(&self, object: &mut Value) {
        object["dispatches_per_token"] = self.dispatches.into();
        object["gpu_us_per_token"] = self.gpu.into();
        object["host_us_per_token"] = self.host.into();
        object["kernels"] = self.kernels();
    }

    /// An object of its own.
    fn object(&self) -> Value {
        json!({
            "what": self.what, "clock": self.clock.to_string(), "dispatches": self.dispatches,
            "gpu_us": self.gpu, "host_us": self.host, "kernels": self.kernels(),
        })
    }

    fn kernels(&self) -> Value {
        let kernel = |kernel: &Kernel| {
            let (rate, share) = kernel.rate(self.peak).unzip();
            let share = share.flatten();
            json!({ "name": kernel.name, "count": kernel.count, "us": kernel.us, "bytes": kernel.bytes, "bytes_per_second": rate, "share_of_peak": share })
        };
        self.kernels.iter().map(kernel).collect()
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
        writeln!(
            f,
            "{}, {} clock, without the cost of passes; MB are the bound buffers",
            self.what, self.clock
        )?;
        for kernel @ Kernel { name, count, us, bytes } in &self.kernels {
            let (rate, share) = kernel.rate(self.peak).unzip();
            let rate = rate.map_or_else(|| "-".into(), |rate| format!("{:.1}", rate / 1e9));
            let share =
                share.flatten().map_or_else(|| "-".into(), |share| format!("{:.0}", 100.0 * share));
            let each = us / *count as f64;
            let megabytes = *bytes as f64 / 1e6;
            writeln!(
                f,
                "{us:>9.1} µs  {count:>4} × {each:>6.1} µs  {megabytes:>8.2} MB  {rate:>6} GB/s  {share:>4} % of peak  {name}"
            )?;
        }
        writeln!(f, "{:>9.1} µs  {:>4} dispatches on the GPU", self.gpu, self.dispatches)?;
        write!(f, "{:>9.1} µs  on the host, to encode and submit", self.host)
    }
}
