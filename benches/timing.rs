//! How everything here is timed: work is recorded once, run many times in one submission, waited
//! for, and set against the device's roof.

use bitnet_wgpu::{
    Context, ContextOptions, Recording,
    telemetry::{self, PeakBandwidth},
    wgpu,
};
use criterion::{BenchmarkGroup, BenchmarkId, Throughput, measurement::WallTime};
use pollster::block_on;
use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

/// The layers of BitNet b1.58 2B4T, as they are dispatched (rows × columns): q + k + v, o, gate +
/// up, down.
pub const LAYERS: [(usize, usize); 4] = [(3840, 2560), (2560, 2560), (13824, 2560), (2560, 6912)];

/// The device, and its measured roof.
pub fn device() -> &'static (Context, PeakBandwidth) {
    static DEVICE: LazyLock<(Context, PeakBandwidth)> = LazyLock::new(|| {
        // SAFETY: only the crate's own kernels run on this device.
        let experimental = unsafe { wgpu::ExperimentalFeatures::enabled() };
        let context = block_on(Context::open(ContextOptions::default().experimental(experimental)))
            .expect("a GPU driver");
        let roof = block_on(PeakBandwidth::measure(&context)).expect("the roof can be measured");
        println!(
            "{context:?}; reads {:.1} GB/s by the {} clock",
            roof.bytes_per_second / 1e9,
            roof.clock
        );
        (context, roof)
    });
    &DEVICE
}

/// A group of figures, short to run: times come from the device's clock, and spread little.
pub fn group<'a>(
    criterion: &'a mut criterion::Criterion,
    name: &str,
) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .sample_size(10)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2));
    group
}

/// What a recording's time is set against: the roofline that limits it.
#[derive(Clone, Copy)]
pub enum Work {
    /// Number of bytes that must be read and written once.
    Bytes(usize),
    /// Number of operations on floats, a multiply-add being two.
    Operations(usize),
}

impl Work {
    /// The share of the roofline that `seconds` are. More than all of the bandwidth was of a cache;
    /// tensor cores are above the peak of plain arithmetic.
    fn share(self, seconds: f64) -> Option<f64> {
        static OPERATIONS: LazyLock<f64> = LazyLock::new(|| {
            let rate =
                block_on(telemetry::peak_compute(&device().0)).expect("the roof can be measured");
            println!("multiplies and adds {:.2} TFLOP/s", rate / 1e12);
            rate
        });
        match self {
            Self::Bytes(bytes) => device().1.share(bytes, seconds),
            Self::Operations(operations) => Some(operations as f64 / seconds / *OPERATIONS),
        }
    }

    fn throughput(self) -> Throughput {
        match self {
            Self::Bytes(bytes) => Throughput::Bytes(bytes as u64),
            Self::Operations(operations) => Throughput::Elements(operations as u64),
        }
    }
}

/// [`bench_work`] of this many bytes. Refuses a figure above the roofline: it would be of a cache.
pub fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    shape: &str,
    recording: &Recording,
    copies: usize,
    bytes: usize,
) {
    bench_work(group, name, shape, recording, copies, Work::Bytes(bytes));
}

/// Times `recording`, which does the same work `copies` times on different data; `work` is what one
/// of them must do.
pub fn bench_work(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    shape: &str,
    recording: &Recording,
    copies: usize,
    work: Work,
) {
    // A GPU that was idle while the host made its data has a low clock, and takes some tenths of a
    // second to raise it.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        block_on(recording.time(1)).expect("it runs");
    }
    let (clock, time) = block_on(recording.time(3)).expect("it runs");
    let seconds = time.as_secs_f64() / copies as f64;
    match work.share(seconds) {
        Some(share) => println!(
            "{name} {shape}: {:.2} µs ({clock} clock), {:.1} % of the roof",
            seconds * 1e6,
            share * 100.0
        ),
        None => {
            println!("{name} {shape}: above the roof, so in a cache, and not reported");
            return;
        }
    }
    group.throughput(work.throughput());
    group.bench_function(BenchmarkId::new(name, shape), |bencher| {
        bencher.iter_custom(|iterations| {
            // One iteration is one of the copies.
            let (runs, rest) = (iterations.div_ceil(copies as u64), iterations);
            let runs = u32::try_from(runs).expect("not so many iterations");
            let (_, time) = block_on(recording.time(runs)).expect("it runs");
            time.mul_f64(rest as f64 / copies as f64)
        });
    });
}
