//! The linear layers of a real model on the CPU and, where there is a GPU, in every language that it runs: are the integers equal, how far is the
//! output from float arithmetic on the same weights, how fast is it? `cargo run --release --example bitlinear [MODEL_DIR]`

mod support;

use bitnet_wgpu::{PackedTernary, Result, bitnet, formats::Checkpoint, measure::Roof};
use pollster::block_on;
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m").into());
    let checkpoint = Checkpoint::open(&directory)?;
    let context = support::open().map_err(|error| println!("{error}\nso on the CPU only")).ok();
    let roof = context.as_ref().map(|context| block_on(Roof::measure(context))).transpose()?;
    if let Some(Roof { bytes_per_second, clock }) = roof {
        let roof = bytes_per_second / 1e9;
        println!("roof: reads {roof:.1} GB/s ({clock:?} clock); GB/s are of packed weights, from memory or cache");
    }
    println!("\n{:<38} {:>12} tokens   on   sums   error        time", "layer", "shape");
    let mut rng = support::rng();
    for name in checkpoint.linears().iter().take(7) {
        let w = checkpoint.linear(name)?;
        for tokens in [1, 64] {
            let x = support::activations(&mut rng, tokens * w.columns());
            let print = |on: &str, sums: &str, y: &[f32], time: Duration| {
                let (error, seconds) = (support::error(&x, &w, y), time.as_secs_f64());
                let shape = format!("{} × {}", w.rows(), w.columns());
                // The roof is the GPU's.
                let rate = support::rate(roof.as_ref().filter(|_| on != "CPU"), 4 * w.words().len(), seconds);
                println!("{name:<38} {shape:>12} {tokens:>6} {on:>5} {sums:<6} {error:.1e} {:8.1} µs {rate}", seconds * 1e6);
            };
            let xq = bitnet::quantize_activations_cpu(&x, tokens, w.columns())?;
            let oracle = bitnet::accumulators_cpu(&xq, &w)?;
            let start = Instant::now();
            let y = bitnet::bitlinear_quantized_cpu(&xq, &w)?;
            print("CPU", "oracle", &y, start.elapsed());
            for &language in context.iter().flat_map(|context| context.capabilities().languages) {
                let context = context.as_ref().expect("it has languages").with_language(language)?;
                let (sums, y, time) = on_gpu(&context, &x, tokens, &w)?;
                let equal = sums.iter().zip(&oracle).all(|(&gpu, &cpu)| gpu == cpu as f32);
                print(&format!("{language:?}"), if equal { "equal" } else { "DIFFER" }, &y, time);
                assert!(equal, "every implementation gives the same integers");
            }
        }
    }
    Ok(())
}

/// The integer sums, the outputs, and the time of one multiplication.
fn on_gpu(context: &bitnet_wgpu::Context, x: &[f32], tokens: usize, w: &PackedTernary) -> Result<(Vec<f32>, Vec<f32>, Duration)> {
    let (x, w) = (context.upload(x, [tokens, w.columns()])?, w.upload(context)?);
    let mut encoder = context.encoder("sums");
    let xq = bitnet::quantize_activations(&mut encoder, &x)?;
    let sums = bitnet::accumulators(&mut encoder, &xq, &w)?;
    encoder.submit()?.wait()?;
    let mut encoder = context.encoder("bitlinear");
    let y = bitnet::bitlinear_quantized(&mut encoder, &xq, &w)?;
    let multiplication = encoder.finish();
    block_on(multiplication.time(10))?; // to warm up
    let (_, time) = block_on(multiplication.time(50))?;
    Ok((block_on(sums.read())?, block_on(y.read())?, time))
}
