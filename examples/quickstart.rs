//! Quantizes a matrix, multiplies it by a vector and reads the result back.
//! `cargo run --release --example quickstart`

use bitnet_wgpu::{
    Context,
    bitnet::{BitLinear, WeightQuantizer},
    cpu,
};

fn main() -> bitnet_wgpu::Result<()> {
    let context = pollster::block_on(Context::new())?;
    println!("{context:?}");

    // Weights [out, in] and one row of activations [1, in].
    let (rows, columns) = (1024, 2048);
    let weights: Vec<f32> = (0..rows * columns).map(|i| (i as f32 * 0.37).sin() * 0.05).collect();
    let x: Vec<f32> = (0..columns).map(|i| (i as f32 * 0.11).cos()).collect();

    // Record: nothing runs before `submit`.
    let mut encoder = context.encoder("quickstart");
    let master = context.upload(&weights, [rows, columns])?;
    let w = WeightQuantizer::absmean().quantize(&mut encoder, &master)?;
    let y = BitLinear::new(&w).forward(&mut encoder, &context.upload(&x, [1, columns])?)?;
    encoder.submit()?.wait()?;

    let y = pollster::block_on(y.read())?;
    println!("y = {:?} ...", &y[..4]);

    // The CPU's result is bit-identical.
    let packed = cpu::quantize_weights(&weights, [rows, columns], WeightQuantizer::absmean())?;
    assert_eq!(y, cpu::BitLinear::new(&cpu::InterleavedTernary::new(&packed)).forward(&x, 1)?);
    println!("equal to the CPU");
    println!("{} bytes of weights are now {}", 4 * weights.len(), w.code_bytes());
    Ok(())
}
