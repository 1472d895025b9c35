//! What this device can do at most: the roofline that benchmarks compare themselves with.

use crate::{
    error::Result,
    gpu::{context::Context, observe::profile::Clock, recording::Recording, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Source, Work},
    },
    params, wgsl,
};
use std::time::{Duration, Instant};

params! { struct Params { quads: u32 } }
params! { struct ArithmeticParams { turns: u32, factor: f32, term: f32 } }

static READ_BANDWIDTH: Kernel = Kernel::trusted(
    "read_bandwidth",
    Params::FIELDS,
    &[read("source", U32), read_write("sink", U32)],
    &[Source::wgsl(wgsl!["shared/ids", "measure/read_bandwidth"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .work(Work::new(64, "bytes", 64, 4))],
);

/// A turn is 8 chains × 4 numbers × 2 multiply-adds.
static ARITHMETIC: Kernel = Kernel::trusted(
    "arithmetic",
    ArithmeticParams::FIELDS,
    &[read_write("sink", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "measure/arithmetic"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .work(Work::new(64, "multiply-adds", 0, 128))],
);

pub(super) static KERNELS: &[&Kernel] = &[&READ_BANDWIDTH, &ARITHMETIC];

/// The measured limit of a device, for [`PeakBandwidth::share`].
#[derive(Clone, Copy, Debug)]
pub struct PeakBandwidth {
    /// Bytes a second that a kernel reads from a buffer larger than the caches.
    pub bytes_per_second: f64,
    /// The clock behind it.
    pub clock: Clock,
}

impl PeakBandwidth {
    /// Measures the read bandwidth: the best run over a buffer of 1 GiB (on a software adapter, 64
    /// MiB), or as much as the device binds. An idle device runs at a low clock at first, so it
    /// goes on until for 0.4 seconds none was better. That may not do: an H200 stayed at less than
    /// half of its bandwidth for longer. Do other work first.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn measure(context: &Context) -> Result<Self> {
        let capabilities = context.capabilities();
        let bytes: u64 = if capabilities.software { 64 << 20 } else { 1 << 30 };
        let quads = (bytes.min(capabilities.max_binding_bytes) / 16) as usize;
        let workgroups = if capabilities.software { 8 } else { 4096 };
        let source = Tensor::<u32>::zeros(context, [4 * quads])?;
        let sink = Tensor::<u32>::uninit(context, [4 * 256 * workgroups])?;
        let mut encoder = context.encoder("roof");
        encoder.dispatch(
            &READ_BANDWIDTH,
            &Params { quads: quads as u32 },
            &[&source, &sink],
            [workgroups, 1, 1],
        )?;
        let recording = encoder.finish();
        let (bytes_per_second, clock) = best_rate(&recording, (16 * quads) as f64).await?;
        // Not a gigabyte in the pool for the rest of the program.
        drop((recording, source, sink));
        context.trim_memory();
        Ok(Self { bytes_per_second, clock })
    }

    /// What share of the roofline `bytes` in `seconds` is; `None` where it is above the roofline,
    /// and so no measurement of this device's memory.
    pub fn share(&self, bytes: usize, seconds: f64) -> Option<f64> {
        let share = bytes as f64 / seconds / self.bytes_per_second;
        (share <= 1.0).then_some(share)
    }
}

/// The operations a second of a kernel that only multiplies and adds `f32` in registers, a
/// multiply-add being two: what matrix products without tensor cores come up to at most. Measured
/// as [`PeakBandwidth::measure`] does.
///
/// # Errors
/// What the device reports.
pub async fn peak_compute(context: &Context) -> Result<f64> {
    let (workgroups, turns) = if context.capabilities().software { (64, 64) } else { (4096, 1024) };
    let sink = Tensor::<f32>::uninit(context, [4 * 256 * workgroups])?;
    let mut encoder = context.encoder("arithmetic");
    // Numbers that stay between 0 and the largest that they begin with.
    let params = ArithmeticParams { turns: turns as u32, factor: 0.5, term: 1.0 };
    encoder.dispatch(&ARITHMETIC, &params, &[&sink], [workgroups, 1, 1])?;
    let operations = (128 * turns * 256 * workgroups) as f64;
    Ok(best_rate(&encoder.finish(), operations).await?.0)
}

/// `work` a second in the best run of a recording that does so much, and the clock behind it; begun
/// anew until for 0.4 seconds none was better.
async fn best_rate(recording: &Recording, work: f64) -> Result<(f64, Clock)> {
    let (mut best, start, mut improved) = ((0.0, Clock::Host), Instant::now(), Instant::now());
    while improved.elapsed() < Duration::from_millis(400)
        && start.elapsed() < Duration::from_secs(4)
    {
        let (clock, time) = recording.time(4).await?;
        let rate = work / time.as_secs_f64();
        if rate > 1.01 * best.0 {
            improved = Instant::now();
        }
        if rate > best.0 {
            best = (rate, clock);
        }
    }
    Ok(best)
}
