//! Mixed work for as long as is wanted, and what became of memory, threads, descriptors and speed
//! meanwhile: `cargo run --release --example soak -- --seconds 300`. docs/guide/recovery.md has the
//! figures of a run.

use anyhow::{Result, ensure};
use bitnet_cli::{note, say};
use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Context, ContextOptions, Tensor,
    device::AdapterChoice,
    model::{BatchOptions, GenerateOptions, Model, SessionOptions},
    reference, tensor,
    weights::{PackedTernary, Scales},
};
use clap::Parser;
use pollster::block_on;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    fs,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Works on a GPU for a while: ops, generations, batches, forks, devices that come and go, and much
/// that is dropped half-way
#[derive(Parser)]
struct Arguments {
    /// For how long
    #[arg(long, default_value = "60", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// A model directory or a GGUF file
    #[arg(long, value_name = "DIR|FILE.gguf", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m"))]
    model: String,
    /// The GPU: a part of its name, or its number in `bitnet adapters`
    #[arg(long, value_name = "NAME|NUMBER")]
    adapter: Option<String>,
}

/// What the process holds; `None` where the system does not say.
#[derive(Clone, Copy)]
struct Held {
    rss: Option<u64>,
    threads: Option<u64>,
    descriptors: Option<u64>,
}

impl Held {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let number = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))?
                .split_whitespace()
                .next()?
                .parse::<u64>()
                .ok()
        };
        let descriptors = fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as u64);
        Self {
            rss: number("VmRSS:").map(|kib| kib << 10),
            threads: number("Threads:"),
            descriptors,
        }
    }
}

/// What every round works with, and what it has to give.
struct Soak {
    options: ContextOptions,
    context: Context,
    model: Model,
    prompt: Vec<u32>,
    greedy: GenerateOptions,
    expected: Vec<u32>,
}

const TOKENS: usize = 8;

impl Soak {
    fn new(arguments: &Arguments) -> Result<Self> {
        let mut options = ContextOptions::default();
        if let Some(adapter) = &arguments.adapter {
            let Ok(choice) = adapter.parse::<AdapterChoice>();
            options = options.adapter(choice);
        }
        let context = block_on(Context::open(options.clone()))?;
        let model = Model::builder(&arguments.model).device(&context).build()?;
        let prompt = (0..12).map(|i| 1 + i * 7 % (model.config().vocab as u32 - 1)).collect();
        let greedy = GenerateOptions::default().max_tokens(TOKENS).ignore_eos(true);
        let mut soak = Self { options, context, model, prompt, greedy, expected: Vec::new() };
        soak.expected = soak.generated()?;
        Ok(soak)
    }

    fn round(&self, n: u64) -> Result<()> {
        let rng = &mut StdRng::seed_from_u64(n);
        self.ops(rng)?;
        ensure!(self.generated()? == self.expected, "a generation differs");
        self.batch(rng)?;
        self.forks()?;
        if n.is_multiple_of(8) {
            self.another_device()?;
        }
        Ok(())
    }

    /// BitLinear against its twin and an elementwise op, of sizes that change; reads that nobody
    /// waits for.
    fn ops(&self, rng: &mut StdRng) -> Result<()> {
        for _ in 0..4 {
            let (m, n, k) =
                (rng.random_range(1..40), rng.random_range(1..200), rng.random_range(1..300));
            let values: Vec<i8> = (0..n * k).map(|_| rng.random_range(-1..=1)).collect();
            let w = PackedTernary::from_values(n, k, &values, Scales::Tensor(0.5))?;
            let x: Vec<f32> = (0..m * k).map(|_| rng.random_range(-1.0..1.0)).collect();
            let mut encoder = self.context.encoder("soak");
            let y = BitLinear::new(&w.upload(&self.context)?)
                .forward(&mut encoder, &self.context.upload(&x, [m, k])?)?;
            let squares = tensor::mul(&y, &y).forward(&mut encoder)?;
            encoder.submit()?;
            drop(squares.read());
            ensure!(
                block_on(y.read())? == reference::bitlinear(&x, m, &w)?,
                "BitLinear differs from its twin: {m} × {n} × {k}"
            );
        }
        // Recorded, and never run; and what is too large is refused.
        let mut encoder = self.context.encoder("dropped");
        let x = Tensor::<f32>::zeros(&self.context, [rng.random_range(1..100_000)])?;
        tensor::mul(&x, &x).forward(&mut encoder)?;
        ensure!(
            Tensor::<f32>::uninit(&self.context, [usize::MAX / 2]).is_err(),
            "a tensor without end"
        );
        Ok(())
    }

    fn generated(&self) -> Result<Vec<u32>> {
        let ids = self
            .model
            .generate_ids(&self.prompt, &self.greedy)?
            .into_iter()
            .map(|token| Ok(token?.id));
        ids.collect()
    }

    /// More prompts than slots; one goes before its end, one is never looked at.
    fn batch(&self, rng: &mut StdRng) -> Result<()> {
        let batch = self.model.batch(BatchOptions::new(2, self.prompt.len() + TOKENS))?;
        let mut streams = (0..4)
            .map(|_| batch.generate_ids(&self.prompt, &self.greedy))
            .collect::<bitnet_wgpu::Result<Vec<_>>>()?;
        let mut leaves = streams.swap_remove(rng.random_range(0..streams.len()));
        if let Some(token) = block_on(leaves.next_token()) {
            ensure!(token?.id == self.expected[0], "a batch's first token differs");
        }
        drop(leaves);
        drop(streams.pop());
        for stream in streams {
            ensure!(block_on(stream.all())?.ids == self.expected, "a batch differs");
        }
        Ok(())
    }

    /// A conversation that goes on twice, and a generation that is dropped with its session.
    fn forks(&self) -> Result<()> {
        let session = self.model.session(SessionOptions::new(1, self.prompt.len() + 2 * TOKENS))?;
        let mut first = self.model.generate_ids_in(session, &self.prompt, &self.greedy)?;
        let ids =
            (&mut first).into_iter().map(|token| Ok(token?.id)).collect::<Result<Vec<_>>>()?;
        ensure!(ids == self.expected, "a session differs");
        let session = block_on(first.into_session())?;
        let text = [&self.prompt[..], &ids].concat();
        let mut goes_on = Vec::new();
        for session in [session.fork()?, session] {
            let answer = self.model.generate_ids_in(session, &text, &self.greedy)?;
            goes_on
                .push(answer.into_iter().map(|token| Ok(token?.id)).collect::<Result<Vec<_>>>()?);
        }
        ensure!(goes_on[0] == goes_on[1], "a fork differs");
        let dropped = self.model.generate_ids(&self.prompt, &self.greedy)?;
        drop(dropped);
        Ok(())
    }

    /// One more device, which goes again.
    fn another_device(&self) -> Result<()> {
        let context = block_on(Context::open(self.options.clone()))?;
        let x = context.upload(&[1.0f32, 2.0, 3.0], [3])?;
        let mut encoder = context.encoder("another");
        let y = tensor::mul(&x, &x).forward(&mut encoder)?;
        encoder.submit()?;
        ensure!(block_on(y.read())? == [1.0, 4.0, 9.0], "another device differs");
        Ok(())
    }
}

/// How much faster the last third of the rounds was than the first: -0.1 is a tenth slower. The
/// median of each, since other programs run too.
fn drift(times: &[Duration]) -> Option<f64> {
    let third = times.len() / 3;
    let median = |times: &[Duration]| {
        let mut sorted = times.to_vec();
        sorted.sort();
        sorted.get(sorted.len() / 2).map(Duration::as_secs_f64)
    };
    Some(median(&times[..third])? / median(&times[times.len() - third..])? - 1.0)
}

fn run(arguments: &Arguments) -> Result<()> {
    let soak = Soak::new(arguments)?;
    let (began, lasts) = (Instant::now(), Duration::from_secs(arguments.seconds));
    let (mut start, mut times, mut errors, mut first) = (None, Vec::new(), 0u64, None);
    // Kernels are compiled and the pool is filled in the first tenth of the time: what grows later
    // is what counts.
    let mut rounds = 0u64;
    while began.elapsed() < lasts || times.len() < 3 {
        let round = Instant::now();
        if let Err(error) = soak.round(rounds) {
            errors += 1;
            first.get_or_insert(format!("round {rounds}: {error:#}"));
        }
        rounds += 1;
        match start {
            None if began.elapsed() >= lasts / 10 => {
                start = Some((Held::now(), soak.context.memory_stats()))
            }
            None => {}
            Some(_) => times.push(round.elapsed()),
        }
    }
    let (end, stats) = (Held::now(), soak.context.memory_stats());
    let (start, before) = start.unwrap_or((end, stats));
    let drift = drift(&times);
    let figures: Value = json!({
        "adapter": soak.context.capabilities().adapter, "seconds": began.elapsed().as_secs_f64(), "rounds": rounds, "errors": errors, "first_error": first,
        "rss_start": start.rss, "rss_end": end.rss, "threads_start": start.threads, "threads": end.threads,
        "descriptors_start": start.descriptors, "descriptors": end.descriptors, "drift": drift,
        "gpu_live_start": before.live_bytes, "gpu_live": stats.live_bytes, "gpu_cached": stats.cached_bytes, "gpu_peak": stats.peak_bytes,
        "gpu_reserved": soak.context.reserved_bytes(), "pool_hits": stats.hits, "pool_misses": stats.misses,
        "misses_after_start": stats.misses - before.misses,
    });
    if arguments.json {
        say(format!("{figures}\n"))?;
    } else {
        for (name, figure) in figures.as_object().into_iter().flatten() {
            say(format!("{name}: {figure}\n"))?;
        }
    }
    if let Some(first) = first {
        note(format!("{errors} of {rounds} rounds failed; the first, {first}"));
    }
    ensure!(errors == 0, "rounds failed");
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    bitnet_cli::main(|| run(&arguments))
}
