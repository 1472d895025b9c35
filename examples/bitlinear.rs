//! The linear layers of a real model, on CPU, WGSL and (where there is Metal) MSL: are the integers equal, how far is the output from float
//! arithmetic on the same weights, how fast is it? `cargo run --release --example bitlinear [MODEL_DIR]`

mod support;

use bitnet_wgpu::{Result, bitnet, formats::Checkpoint, measure::Roof};
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m").into());
    let checkpoint = Checkpoint::open(&directory)?;
    let context = support::open()?;
    let roof = pollster::block_on(Roof::measure(&context))?;
    println!(
        "roof: reads {:.1} GB/s ({:?} clock); GB/s are of packed weights, from memory or cache\n",
        roof.bytes_per_second / 1e9,
        roof.clock
    );
    println!("{:<38} {:>12} tokens   on    sums  error        time", "layer", "shape");
    let mut rng = support::rng();
    for name in checkpoint.linears().iter().take(7) {
        let w = checkpoint.linear(name)?;
        for tokens in [1, 64] {
            let x = support::activations(&mut rng, tokens * w.columns());
            let xq = bitnet::quantize_activations_cpu(&x, tokens, w.columns())?;
            let sums: Vec<f32> = bitnet::accumulators_cpu(&xq, &w)?.into_iter().map(|sum| sum as f32).collect();
            let start = Instant::now();
            let y = bitnet::bitlinear_quantized_cpu(&xq, &w)?;
            let print = |on: &str, equal: bool, y: &[f32], time: Duration| {
                let shape = format!("{} × {}", w.rows(), w.columns());
                let (equal, error) = (if equal { "equal" } else { "DIFFER" }, support::error(&x, &w, y));
                let rate = support::rate(&roof, 4 * w.words().len(), time.as_secs_f64());
                println!("{name:<38} {shape:>12} {tokens:>6} {on:>6} {equal:>6} {error:.1e} {:8.1} µs {rate}", time.as_secs_f64() * 1e6);
            };
            print("CPU", true, &y, start.elapsed());
            for &language in context.capabilities().languages {
                let context = context.with_language(language)?;
                let mut encoder = context.encoder("bitlinear");
                let xq = bitnet::quantize_activations(&mut encoder, &context.upload(&x, [tokens, w.columns()])?)?;
                let gpu = bitnet::accumulators(&mut encoder, &xq, &w.upload(&context)?)?;
                encoder.submit()?.wait()?;
                let mut encoder = context.encoder("bitlinear");
                let y = bitnet::bitlinear_quantized::<f32>(&mut encoder, &xq, &w.upload(&context)?)?;
                let recording = encoder.finish();
                let (_, _) = pollster::block_on(recording.time(10))?;
                let (_, time) = pollster::block_on(recording.time(50))?;
                print(&format!("{language:?}"), pollster::block_on(gpu.read())? == sums, &pollster::block_on(y.read())?, time);
            }
        }
    }
    Ok(())
}
