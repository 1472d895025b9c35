//! Compares the linear layers of a real model on the CPU and, where there is a GPU, in every
//! language that it runs: equality of the integers, distance from float arithmetic on the same
//! weights, and speed. `cargo run --release --example bitlinear [MODEL_DIR]`

mod support;

use bitnet_wgpu::{Result, formats::Checkpoint, reference, telemetry::PeakBandwidth};
use pollster::block_on;
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let directory = std::env::args()
        .nth(1)
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m").into());
    let checkpoint = Checkpoint::open(&directory)?;
    let context = support::open().map_err(|error| println!("{error}\nso on the CPU only")).ok();
    let peak =
        context.as_ref().map(|context| block_on(PeakBandwidth::measure(context))).transpose()?;
    if let Some(PeakBandwidth { bytes_per_second, clock }) = peak {
        let peak = bytes_per_second / 1e9;
        println!(
            "peak: reads {peak:.1} GB/s ({clock} clock); GB/s are of packed weights, from memory or cache"
        );
    }
    println!("\n{:<38} {:>12} tokens   on sums   error        time", "layer", "shape");
    let mut rng = support::rng();
    for name in checkpoint.linears().iter().take(7) {
        let w = checkpoint.ternary(name)?;
        for tokens in [1, 64] {
            let x = support::activations(&mut rng, tokens * w.columns());
            let print = |on: &str, sums: &str, y: &[f32], time: Duration| {
                let shape = format!("{} × {}", w.rows(), w.columns());
                // The roofline is the GPU's.
                let speed = support::speed(
                    peak.as_ref().filter(|_| on != "CPU"),
                    4 * w.words().len(),
                    time,
                );
                println!(
                    "{name:<38} {shape:>12} {tokens:>6} {on:>4} {sums:<6} {:.1e} {speed}",
                    support::error(&x, &w, y)
                );
            };
            let xq = reference::quantize_activations(&x, tokens, w.columns())?;
            let oracle = reference::accumulators(&xq, &w)?;
            let start = Instant::now();
            let y = reference::bitlinear_quantized(&xq, &w)?;
            print("CPU", "oracle", &y, start.elapsed());
            for &language in context.iter().flat_map(|context| context.capabilities().languages) {
                let context =
                    context.as_ref().expect("it has languages").with_language(language)?;
                let (sums, y, time) = support::on_gpu(&context, &x, tokens, &w)?;
                print(&format!("{language:?}"), support::compare(&sums, &oracle), &y, time);
            }
        }
    }
    Ok(())
}
