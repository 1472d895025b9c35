//! Trains a ternary transformer of two layers on a short text, by ops of the library alone:
//! forward, backward straight through the quantizers, dropout, clipping, AdamW.
//! `cargo run --release --features train --example learn [steps] [large]`
//!
//! `tests/models/learn.rs` compares the first steps with PyTorch's.

mod data;
mod model;
mod training;

use bitnet_wgpu::{Context, Result};
use model::Settings;
use pollster::block_on;
use std::time::Instant;
use training::Training;

/// For a GPU to have something to do.
const LARGE: Settings =
    Settings { width: 1024, heads: 16, inner: 2816, context: 512, batch: 16, ..Settings::SMALL };

fn main() -> Result<()> {
    env_logger::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (steps, settings) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (Ok(300), Settings::SMALL),
        [steps] => (steps.parse(), Settings::SMALL),
        [steps, "large"] => (steps.parse(), LARGE),
        _ => usage(),
    };
    let Ok(steps @ 1..) = steps else { usage() };
    let context = block_on(Context::new())?;
    println!("{} · kernels in {:?}", context.capabilities().adapter, context.language());

    let mut training = Training::new(&context, settings)?;
    let mut start = Instant::now();
    for step in 1..=steps {
        let (loss, norm) = training.step()?;
        if step == 1 || step % 20 == 0 || step == steps {
            println!(
                "step {step:4}: loss {:.4}, norm of the gradients {:.4}",
                block_on(loss.read())?[0],
                block_on(norm.read())?[0]
            );
        }
        if step == 1 {
            // Now all kernels are compiled.
            start = Instant::now();
        }
    }
    let tokens = (steps - 1) * settings.batch * settings.context;
    println!("{:.0} tokens a second", tokens as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

fn usage() -> ! {
    eprintln!("learn [steps] [large]");
    std::process::exit(2);
}
