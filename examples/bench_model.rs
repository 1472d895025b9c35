//! Times whole models with random weights: `cargo run --release --example bench_model -- --config config.json`.

#[path = "support/model.rs"]
mod support;

use bitnet_wgpu::{
    Context, DenseElement, Element, Error, PackedDense, PackedTernary, Result, Scales,
    formats::{ModelConfig, ModelFile},
    measure::Roof,
    model::{GenerateOptions, LoadOptions, Model},
};
use clap::Parser;
use indicatif::ProgressBar;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use std::{path::PathBuf, process::ExitCode, time::Instant};

/// The shape of BitNet b1.58 2B4T.
const BITNET_2B4T: &str = r#"{
    "model_type": "bitnet", "hidden_act": "relu2", "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 30,
    "num_attention_heads": 20, "num_key_value_heads": 5, "vocab_size": 128256, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": true, "bos_token_id": 128000, "eos_token_id": 128001
}"#;

/// Times prefill and decode of a model with random weights
#[derive(Parser)]
struct Arguments {
    /// The model's config.json [default: the shape of BitNet b1.58 2B4T]
    #[arg(long)]
    config: Option<PathBuf>,
    /// Store the head in 8 bits
    #[arg(long)]
    int8_head: bool,
    /// Store keys and values in 16 bits
    #[arg(long)]
    f16_cache: bool,
    /// Compute on the CPU
    #[arg(long)]
    cpu: bool,
    /// Tokens to decode per measurement
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Prompt lengths for timing prefill
    #[arg(long, value_delimiter = ',', default_value = "128,512")]
    prefill: Vec<usize>,
    /// Context lengths after which to time decode
    #[arg(long, value_delimiter = ',', default_value = "0,256,2048")]
    contexts: Vec<usize>,
}

/// Random ternary layers and a random embedding in bf16.
struct RandomModel(ModelConfig);

impl ModelFile for RandomModel {
    fn config(&self) -> &ModelConfig {
        &self.0
    }

    fn contains(&self, _: &str) -> bool {
        true
    }

    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        let mut rng = seeded(name);
        if !columns.is_multiple_of(64) {
            let values: Vec<i8> = (0..rows * columns).map(|_| (rng.next_u32() % 3) as i8 - 1).collect();
            return PackedTernary::from_values(rows, columns, &values, Scales::Tensor(0.02));
        }
        // Each 2-bit code is 1 with probability 1/2, else 0 or 2.
        let word = |r: u64| {
            let (ones, high) = (r as u32 & 0x5555_5555, (r >> 32) as u32 & 0x5555_5555);
            ones | (high & !ones) << 1
        };
        let words = (0..rows * columns / 16).map(|_| word(rng.next_u64())).collect();
        PackedTernary::from_words(rows, columns, words, Scales::Tensor(0.02))
    }

    fn vector(&self, _: &str, len: usize) -> Result<Vec<f32>> {
        Ok(vec![1.0; len])
    }

    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense> {
        let mut rng = seeded(name);
        // bf16 numbers with magnitudes from 0.5 to 2 and either sign.
        let halves: Vec<u8> = (0..rows * columns).flat_map(|_| ((rng.next_u32() as u16 & 0x80ff) | 0x3f00).to_le_bytes()).collect();
        PackedDense::from_bytes(DenseElement::Bf16, rows, columns, &halves)
    }
}

fn seeded(name: &str) -> StdRng {
    StdRng::seed_from_u64(name.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte)))
}

/// Bytes of weights that a decoding step reads: two bits per ternary weight, and the head.
fn weight_bytes(c: &ModelConfig, int8_head: bool) -> usize {
    let row = (c.heads + 2 * c.kv_heads) * c.head_dim;
    let layer = c.hidden * (row + c.heads * c.head_dim + 3 * c.intermediate);
    c.layers * layer / 4 + c.vocab * c.hidden * if int8_head { 1 } else { 2 }
}

/// Bytes of keys and values that a decoding step reads after `context` tokens.
fn cache_bytes(c: &ModelConfig, context: usize, f16: bool) -> usize {
    c.layers * context * 2 * c.kv_heads * c.head_dim * if f16 { 2 } else { 4 }
}

/// Seconds to the first token, and per token after it.
fn time(model: &Model, prompt: usize, tokens: usize, cache: Element) -> Result<(f64, f64)> {
    let ids: Vec<u32> = (0..prompt.max(1) as u64).map(|i| (i * 7919 % model.config().vocab as u64) as u32).collect();
    let options = GenerateOptions::default().max_tokens(tokens.saturating_add(1)).ignore_eos(true).cache(cache);
    let mut generation = model.generate_ids(&ids, &options)?.into_iter();
    let start = Instant::now();
    generation.next().transpose()?;
    let first = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let generated = generation.try_fold(0, |count, token| token.map(|_| count + 1))?;
    Ok((first, start.elapsed().as_secs_f64() / f64::from(generated.max(1))))
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    let format =
        |message: String| Error::Format { path: arguments.config.clone().unwrap_or_else(|| "the built-in config".into()), message };
    let json = match &arguments.config {
        Some(path) => std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.clone(), source })?,
        None => BITNET_2B4T.to_owned(),
    };
    let json = serde_json::from_str(&json).map_err(|e| format(e.to_string()))?;
    let config = ModelConfig::from_json(&json).map_err(|problem| format(problem.to_string()))?;
    let context = if arguments.cpu { None } else { Some(pollster::block_on(Context::new())?) };
    let bar = ProgressBar::new(config.layers as u64);
    let mut progress = |done: usize, _| bar.set_position(done as u64);
    let options = LoadOptions::default().int8_head(arguments.int8_head).progress(&mut progress);
    let model = Model::from_file(context.as_ref(), &RandomModel(config.clone()), None, options)?;
    bar.finish_and_clear();

    let (adapter, language) = support::device(&model);
    println!("{adapter}, kernels in {language}; times by the host's clock, until results have arrived");
    let roof = match &context {
        Some(context) => {
            println!("{:.2} GB of GPU memory for the weights", context.pool_stats().used_bytes as f64 / 1e9);
            Some(pollster::block_on(Roof::measure(context))?)
        }
        None => None,
    };
    let cache = if arguments.f16_cache { Element::F16 } else { Element::F32 };
    // Warm-up: an idle device runs at a low clock, and kernels are compiled at their first use.
    for _ in 0..3 {
        time(&model, 512.min(config.context.saturating_sub(8)), 8, cache)?;
    }
    for &prompt in &arguments.prefill {
        if prompt > config.context {
            println!("prefill {prompt:5}: beyond the context of {}", config.context);
            continue;
        }
        // The first prompt of a length allocates its buffers; of five others, the median.
        let mut times = (0..6).map(|_| Ok(time(&model, prompt, 1, cache)?.0)).collect::<Result<Vec<_>>>()?;
        times[1..].sort_by(f64::total_cmp);
        let first = times[3];
        println!("prefill {prompt:5}: {:8.1} ms, {:8.0} tokens per second", first * 1e3, prompt as f64 / first);
    }
    for &length in &arguments.contexts {
        if length.saturating_add(arguments.tokens) > config.context {
            println!("decode after {length:5}: {} more tokens are beyond the context of {}", arguments.tokens, config.context);
            continue;
        }
        let (_, step) = time(&model, length, arguments.tokens, cache)?;
        let bytes = weight_bytes(&config, arguments.int8_head) + cache_bytes(&config, length + arguments.tokens / 2, arguments.f16_cache);
        let share = match roof.as_ref().map(|roof| roof.share(bytes, step)) {
            None => String::new(),
            Some(Some(share)) => format!(", {:.1} % of the roof", 100.0 * share),
            Some(None) => ", above the roof: read from a cache".into(),
        };
        println!("decode after {length:5}: {:8.1} tokens per second, {:.0} MB per token{share}", 1.0 / step, bytes as f64 / 1e6);
    }
    if let Some(context) = &context {
        let stats = context.pool_stats();
        println!("{:.2} GB of GPU memory in all, pooled buffers included", (stats.used_bytes + stats.free_bytes) as f64 / 1e9);
    }
    Ok(())
}

fn main() -> ExitCode {
    support::log();
    support::report(run())
}
