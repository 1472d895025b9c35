//! What the examples share: a device, random numbers, and how figures are printed.
#![allow(dead_code, reason = "each example uses its part")]

pub mod roofline;

use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Context, Result, bitnet,
    telemetry::PeakBandwidth,
    weights::{PackedTernary, Scales},
};
use pollster::block_on;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::time::Duration;

/// Opens the device and says which it is.
pub fn open() -> Result<Context> {
    env_logger::init();
    let context = pollster::block_on(Context::new())?;
    let c = context.capabilities();
    println!(
        "{} · {} · {:?} · kernels in {:?}",
        c.adapter,
        c.driver,
        c.backend,
        context.language()
    );
    Ok(context)
}

pub fn rng() -> StdRng {
    StdRng::seed_from_u64(1)
}

pub fn activations(rng: &mut StdRng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-2.0..2.0)).collect()
}

pub fn ternary(rng: &mut StdRng, rows: usize, columns: usize) -> PackedTernary {
    let values: Vec<i8> = (0..rows * columns).map(|_| rng.random_range(-1..=1)).collect();
    PackedTernary::from_values(rows, columns, &values, Scales::Tensor(0.02))
        .expect("values are ternary")
}

/// Gigabytes a second and the share of the peakline, if there is one and the figure is below it.
pub fn rate(peak: Option<&PeakBandwidth>, bytes: usize, seconds: f64) -> String {
    let Some(peak) = peak else { return String::new() };
    match peak.share(bytes, seconds) {
        Some(share) => format!("{:7.1} GB/s {:5.1} %", bytes as f64 / seconds / 1e9, 100.0 * share),
        // The data was in a cache, so this is no figure of the memory's.
        None => "      above the peak".into(),
    }
}

/// The relative error that quantizing the activations makes: against the same weights times float
/// activations, in the 2-norm.
pub fn error(x: &[f32], w: &PackedTernary, y: &[f32]) -> f64 {
    let dense = w.dequantize();
    let rows =
        x.chunks(w.columns()).flat_map(|x| dense.chunks(w.columns()).map(move |row| (row, x)));
    let exact = rows.map(|(row, x)| row.iter().zip(x).map(|(w, x)| f64::from(w * x)).sum::<f64>());
    let (off, norm) = exact
        .zip(y)
        .fold((0.0, 0.0), |(off, norm), (e, &y)| (off + (e - f64::from(y)).powi(2), norm + e * e));
    (off / norm).sqrt()
}

/// The integer sums, the outputs, and the time of one multiplication.
pub fn on_gpu(
    context: &Context,
    x: &[f32],
    tokens: usize,
    w: &PackedTernary,
) -> Result<(Vec<f32>, Vec<f32>, Duration)> {
    let (x, w) = (context.upload(x, [tokens, w.columns()])?, w.upload(context)?);
    let mut encoder = context.encoder("sums");
    let xq = bitnet::ActivationQuantizer::int8().quantize(&mut encoder, &x)?;
    let sums = bitnet::accumulators(&xq, &w).forward(&mut encoder)?;
    encoder.submit()?.wait()?;
    let mut encoder = context.encoder("bitlinear");
    let y = BitLinear::new(&w).forward(&mut encoder, &xq)?;
    let multiplication = encoder.finish();
    block_on(multiplication.time(10))?; // to warm up
    let (_, time) = block_on(multiplication.time(50))?;
    Ok((block_on(sums.read())?, block_on(y.read())?, time))
}

/// Whether integer sums that came as floats are those of the CPU. Every implementation gives the
/// same, so that a difference is a bug.
pub fn compare(sums: &[f32], oracle: &[i32]) -> &'static str {
    assert!(
        sums.iter().zip(oracle).all(|(&sum, &oracle)| sum == oracle as f32),
        "the integers differ"
    );
    "equal"
}

/// Time and [`rate`].
pub fn speed(peak: Option<&PeakBandwidth>, bytes: usize, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    format!("{:8.1} µs {}", seconds * 1e6, rate(peak, bytes, seconds))
}
