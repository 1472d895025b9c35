//! Prompts that join a batch while others run: each gets the tokens that it gets alone, and no
//! request waits for a slow reader.

mod requests;
mod sampling;

use bitnet_wgpu::model::{Batch, BatchOptions, GenerateOptions, Generation, Model, Stop, Token};
use std::{
    sync::LazyLock,
    thread::sleep,
    time::{Duration, Instant},
};
use support::{block_on, context, models::two_layers};

/// A model on each engine.
fn models() -> [(&'static str, Model); 2] {
    static MODELS: LazyLock<[Model; 2]> =
        LazyLock::new(|| [two_layers(None), two_layers(Some(context()))]);
    let [cpu, gpu] = &*MODELS;
    [("CPU", cpu.clone()), ("GPU", gpu.clone())]
}

fn batch(model: &Model, slots: usize, queue: usize) -> Batch {
    model.batch(BatchOptions::new(slots, 256).queue(queue)).unwrap()
}

fn greedy(tokens: usize) -> GenerateOptions {
    GenerateOptions::default().max_tokens(tokens).ignore_eos(true)
}

fn take(stream: &mut Generation, tokens: usize) -> Vec<Token> {
    stream.into_iter().take(tokens).collect::<Result<_, _>>().unwrap()
}

/// A prompt of this many tokens.
fn ids(model: &Model, seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * i * 31 + i * 7 + seed * 977) % model.config().vocab as u32).collect()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: never");
        sleep(Duration::from_millis(2));
    }
}

/// What a prompt gives without any batch.
fn alone(
    model: &Model,
    prompt: &[u32],
    options: &GenerateOptions,
) -> (Vec<u32>, String, Option<Stop>) {
    let mut generation = model.generate_ids(prompt, options).unwrap();
    let tokens: Vec<Token> = (&mut generation).into_iter().map(Result::unwrap).collect();
    let text = tokens.iter().map(|token| &*token.text).collect();
    (tokens.iter().map(|token| token.id).collect(), text, generation.stop())
}

/// All that comes of a stream.
fn all(stream: Generation) -> (Vec<u32>, String, Option<Stop>) {
    let generated = block_on(stream.all()).unwrap();
    (generated.ids, generated.text, Some(generated.stop))
}
