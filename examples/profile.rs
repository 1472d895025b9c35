//! Times each kernel of a recording separately, by the GPU's clock if it has one.
//! `cargo run --release --example profile -- [TRACE.json] [ROOFLINE.svg]` writes what host and GPU
//! did as well, for <https://ui.perfetto.dev>, and how far kernels are from what the device can.

mod support;

use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Context, Recording, bitnet,
    telemetry::{self, Profile},
};
use pollster::block_on;
use support::roofline::{self, Point};

const ROWS: usize = 2560;
const COLUMNS: usize = 2560;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    let (plots, traces): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.ends_with(".svg"));
    let context = support::open()?;
    let mut rng = support::rng();
    let (mut recordings, mut points) = (Vec::new(), Vec::new());
    let w = support::ternary(&mut rng, ROWS, COLUMNS).upload(&context)?;
    for tokens in [1, 64] {
        let x =
            context.upload(&support::activations(&mut rng, tokens * COLUMNS), [tokens, COLUMNS])?;
        let gain = context.upload(&vec![1.0; COLUMNS], [COLUMNS])?;
        let mut encoder = context.encoder("profile");
        let xq =
            bitnet::ActivationQuantizer::int8().norm((&gain, 1e-5)).quantize(&mut encoder, &x)?;
        let y = BitLinear::new(&w).forward(&mut encoder, &xq)?;
        let _ = BitLinear::new(&w).forward(&mut encoder, &y)?;
        let recording = encoder.finish();
        // The first run compiles the kernels and warms up the GPU.
        recording.submit()?.wait()?;
        let profile = block_on(recording.profile())?;
        println!("{tokens} tokens × {ROWS} × {COLUMNS}\n{profile}\n");
        points.extend(done(&recording, &profile, tokens));
        recordings.push(recording);
    }
    for path in plots {
        std::fs::write(path, plot(&context, &points)?)?;
    }
    if let Some(path) = traces.first() {
        let tracing = context.trace()?;
        for recording in &recordings {
            recording.submit()?.wait()?;
        }
        std::fs::write(path, block_on(tracing.finish())?.to_string())?;
    }
    Ok(())
}

/// What each kernel did: the bytes bound to it, and the operations that its definition has. A
/// product has two a weight and token. A number that is quantized has four (its size, the largest,
/// a product, rounding), and four more before where it is normed (a square, a sum, two products).
fn done(recording: &Recording, profile: &Profile, tokens: usize) -> Vec<Point> {
    let mut points = Vec::<Point>::new();
    for (step, dispatch) in profile.steps.iter().zip(recording.dispatches()) {
        let each = match step.kernel {
            name if name.starts_with("bitlinear") => 2 * ROWS,
            name if name.starts_with("rms_norm_quantize") => 8,
            name if name.starts_with("quantize") => 4,
            _ => continue,
        };
        let (name, operations) =
            (format!("{}, {tokens}", step.kernel), (each * tokens * COLUMNS) as f64);
        let (bytes, seconds) =
            (dispatch.bytes().iter().sum::<u64>() as f64, step.time.as_secs_f64());
        match points.iter_mut().find(|point| point.name == name) {
            Some(Point { operations: o, bytes: b, seconds: s, .. }) => {
                (*o, *b, *s) = (*o + operations, *b + bytes, *s + seconds)
            }
            None => points.push(Point { name, operations, bytes, seconds }),
        }
    }
    points
}

fn plot(context: &Context, points: &[Point]) -> bitnet_wgpu::Result<String> {
    let (peak, arithmetic) = (
        block_on(telemetry::PeakBandwidth::measure(context))?,
        block_on(telemetry::peak_compute(context))?,
    );
    let title = format!("{}: kernels, and for how many tokens", context.capabilities().adapter);
    Ok(roofline::svg(&title, peak.bytes_per_second, arithmetic, points))
}
