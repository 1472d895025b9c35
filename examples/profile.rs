//! Times each kernel of a recording separately, by the GPU's clock if it has one. `cargo run --release --example profile -- [TRACE.json]` writes what host
//! and GPU did as well, for <https://ui.perfetto.dev>.

mod support;

use bitnet_wgpu::bitnet;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = support::open()?;
    let mut rng = support::rng();
    let (rows, columns) = (2560, 2560);
    let mut recordings = Vec::new();
    let w = support::ternary(&mut rng, rows, columns).upload(&context)?;
    for tokens in [1, 64] {
        let x = context.upload(&support::activations(&mut rng, tokens * columns), [tokens, columns])?;
        let gain = context.upload(&vec![1.0; columns], [columns])?;
        let mut encoder = context.encoder("profile");
        let xq = bitnet::rms_norm_quantize(&mut encoder, &x, &gain, 1e-5)?;
        let y = bitnet::bitlinear_quantized::<f32>(&mut encoder, &xq, &w)?;
        let _ = bitnet::bitlinear(&mut encoder, &y, &w)?;
        let recording = encoder.finish();
        // The first run compiles the kernels and warms up the GPU.
        recording.submit()?.wait()?;
        println!("{tokens} tokens × {rows} × {columns}\n{}\n", pollster::block_on(recording.profile())?);
        recordings.push(recording);
    }
    if let Some(path) = std::env::args().nth(1) {
        let tracing = context.trace()?;
        for recording in &recordings {
            recording.submit()?.wait()?;
        }
        std::fs::write(path, pollster::block_on(tracing.finish())?.to_string())?;
    }
    Ok(())
}
