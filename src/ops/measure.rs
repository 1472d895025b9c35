//! What this device can do at most: the roof that benchmarks compare themselves with.

use crate::{
    error::Result,
    gpu::{context::Context, profile::Clock, tensor::Tensor},
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

static READ_BANDWIDTH: Kernel = Kernel::trusted(
    "read_bandwidth",
    Params::FIELDS,
    &[read("source", U32), read_write("sink", U32)],
    &[Source::wgsl(wgsl!["shared/ids", "measure/read_bandwidth"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .work(Work::new(64, "bytes", 64, 4))],
);

pub(super) static KERNELS: &[&Kernel] = &[&READ_BANDWIDTH];

/// The measured limit of a device, for [`Roof::share`].
#[derive(Clone, Copy, Debug)]
pub struct Roof {
    /// Bytes a second that a kernel reads from a buffer larger than the caches.
    pub bytes_per_second: f64,
    /// The clock behind it.
    pub clock: Clock,
}

impl Roof {
    /// Measures the read bandwidth: the best run over a buffer of 1 GiB (on a software adapter, 64 MiB), or as much as the device binds. An idle device
    /// runs at a low clock at first, so it goes on until for 0.4 seconds none was better. That may not do: an H200 stayed at less than half of its
    /// bandwidth for longer. Do other work first.
    pub async fn measure(context: &Context) -> Result<Self> {
        let capabilities = context.capabilities();
        let bytes: u64 = if capabilities.software { 64 << 20 } else { 1 << 30 };
        let quads = (bytes.min(capabilities.max_binding_bytes) / 16) as usize;
        let workgroups = if capabilities.software { 8 } else { 4096 };
        let source = Tensor::<u32>::zeros(context, [4 * quads])?;
        let sink = Tensor::<u32>::uninit(context, [4 * 256 * workgroups])?;
        let mut encoder = context.encoder("roof");
        encoder.dispatch(&READ_BANDWIDTH, &Params { quads: quads as u32 }, &[&source, &sink], [workgroups, 1, 1])?;
        let recording = encoder.finish();
        let mut best: Option<Self> = None;
        let (start, mut improved) = (Instant::now(), Instant::now());
        while improved.elapsed() < Duration::from_millis(400) && start.elapsed() < Duration::from_secs(4) {
            let (clock, time) = recording.time(4).await?;
            let bytes_per_second = (16 * quads) as f64 / time.as_secs_f64();
            if best.is_none_or(|best| bytes_per_second > 1.01 * best.bytes_per_second) {
                improved = Instant::now();
            }
            if best.is_none_or(|best| bytes_per_second > best.bytes_per_second) {
                best = Some(Self { bytes_per_second, clock });
            }
        }
        // Not a gigabyte in the pool for the rest of the program.
        drop((recording, source, sink));
        context.trim_pool();
        Ok(best.unwrap_or(Self { bytes_per_second: 0.0, clock: Clock::Host }))
    }

    /// What share of the roof `bytes` in `seconds` is; `None` where it is above the roof, and so no measurement of this device's memory.
    pub fn share(&self, bytes: usize, seconds: f64) -> Option<f64> {
        let share = bytes as f64 / seconds / self.bytes_per_second;
        (share <= 1.0).then_some(share)
    }
}
