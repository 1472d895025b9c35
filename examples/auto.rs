//! What calls of [`Auto`] take beside direct calls of either side, for 2^6 to 2^24 numbers, and what
//! it chooses; then quantizers and BitLinear with operands on the GPU.
//!
//!     cargo run --release --example auto [-- 24 [FILE]]
//!
//! Medians in microseconds. The overhead is that of `Auto` on a side, over the direct call. The
//! tables are written to the file as JSON.

use bitnet_wgpu::{
    Context, Encoder, Result, Tensor,
    auto::{Auto, AutoTernary, Ran, Target},
    bitnet::{ActivationQuantizer, BitLinear, WeightQuantizer},
    cpu, tensor,
    transformer::RmsNorm,
    weights::TernaryMatrix,
};
use pollster::block_on;
use serde_json::{Value, json};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

const FEATURES: usize = 1024;
const SIDE: [usize; 2] = [FEATURES, FEATURES];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    env_logger::init();
    let largest = std::env::args()
        .nth(1)
        .map_or(24, |bits| bits.parse().expect("a power of two, by its exponent"));
    let context = block_on(Context::new())?;
    let info = context.adapter_info().clone();
    println!("{}, {} threads", info.name, std::thread::available_parallelism()?);
    let mut slices = Vec::new();
    for op in ["add", "silu", "rms_norm", "quantize_activations", "bitlinear"] {
        println!(
            "\n{op}\n{:>10} {:>11} {:>11} {:>11} {:>18} {:>18}",
            "numbers", "CPU", "GPU", "auto", "over the CPU", "over the GPU"
        );
        let least = if ["add", "silu"].contains(&op) { 6 } else { 10 };
        for bits in (least..=largest).step_by(2) {
            slices.push(compare(&context, op, 1 << bits)?);
        }
    }
    let tensors = on_the_gpu(&context, 1 << (largest / 2))?;
    if let Some(path) = std::env::args().nth(2) {
        let driver = format!("{} {}", info.driver, info.driver_info);
        let found = json!({ "adapter": info.name, "backend": info.backend.to_str(), "driver": driver, "slices": slices, "tensors": tensors });
        std::fs::write(path, format!("{found:#}\n"))?;
    }
    Ok(())
}

/// A way to compute an op; it says where it ran, if it chose.
type Call<'a> = Box<dyn Fn() -> Result<Option<Ran>> + 'a>;

/// What ops are computed of.
struct Operands<'a> {
    context: &'a Context,
    x: Vec<f32>,
    gain: Vec<f32>,
    on_cpu: cpu::InterleavedTernary,
    on_gpu: TernaryMatrix,
    both: AutoTernary,
}

impl Operands<'_> {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2] {
        let rows = (self.x.len() / FEATURES).max(1);
        [rows, self.x.len() / rows]
    }

    fn on_cpu(&self, op: &str) -> Result<Option<Ran>> {
        let (x, [rows, columns]) = (&self.x, self.shape());
        match op {
            "add" => nothing(cpu::add(x, x)),
            "silu" => nothing(Ok(cpu::silu(x))),
            "rms_norm" => nothing(cpu::rms_norm(x, &self.gain, 1e-5)),
            "bitlinear" => nothing(cpu::BitLinear::new(&self.on_cpu).forward(x, rows)),
            _ => nothing(cpu::quantize_activations(x, rows, columns)),
        }
    }

    fn on_gpu(&self, op: &str) -> Result<Option<Ran>> {
        let x = self.context.upload(&self.x, self.shape())?;
        match op {
            "add" => {
                let other = self.context.upload(&self.x, self.shape())?;
                read(self.context, |e| tensor::add(&x, &other).forward(e))
            }
            "silu" => read(self.context, |e| tensor::silu(&x).forward(e)),
            "rms_norm" => {
                let gain = self.context.upload(&self.gain, [FEATURES])?;
                read(self.context, |e| RmsNorm::new(&gain, 1e-5).forward(e, &x))
            }
            "bitlinear" => read(self.context, |e| BitLinear::new(&self.on_gpu).forward(e, &x)),
            _ => {
                let mut encoder = self.context.encoder("direct");
                let y = ActivationQuantizer::int8().quantize(&mut encoder, &x)?;
                let _ = encoder.submit()?;
                nothing(block_on(y.read()))
            }
        }
    }

    fn by(&self, auto: &Auto, op: &str) -> Result<Option<Ran>> {
        let (x, [rows, columns]) = (&self.x, self.shape());
        match op {
            "add" => auto.add(x, x).map(|y| Some(black_box(y).ran)),
            "silu" => auto.silu(x).map(|y| Some(black_box(y).ran)),
            "rms_norm" => auto.rms_norm(x, &self.gain, 1e-5).map(|y| Some(black_box(y).ran)),
            "bitlinear" => auto.bitlinear(x, rows, &self.both).map(|y| Some(black_box(y).ran)),
            _ => auto.quantize_activations(x, rows, columns).map(|y| Some(black_box(y).ran)),
        }
    }
}

/// A line of the first tables.
fn compare(context: &Context, op: &str, numbers: usize) -> Result<Value> {
    let sides = [Some(Target::Cpu), Some(Target::Gpu), None];
    let autos = sides.map(|side| Auto::new(Some(context)).always(side));
    let autos = autos.into_iter().collect::<Result<Vec<_>>>()?;
    let packed = cpu::quantize_weights(&signs(), SIDE, WeightQuantizer::absmean())?;
    let operands = Operands {
        context,
        x: (0..numbers).map(|i| (i % 37) as f32 / 37.0 - 0.5).collect(),
        gain: vec![1.5; FEATURES],
        on_cpu: cpu::InterleavedTernary::new(&packed),
        on_gpu: packed.upload(context)?,
        both: autos[0].weights(packed)?,
    };
    let operands = &operands;
    let (cpu, gpu): (Call, Call) =
        (Box::new(|| operands.on_cpu(op)), Box::new(|| operands.on_gpu(op)));
    let by: Vec<Call> =
        autos.iter().map(|auto| Box::new(move || operands.by(auto, op)) as Call).collect();
    let ([cpu, gpu, auto_cpu, auto_gpu, auto], ran) = time([&cpu, &gpu, &by[0], &by[1], &by[2]])?;
    let over = |auto: f64, direct: f64| {
        let (percent, ns) = (100.0 * (auto / direct - 1.0), 1e3 * (auto - direct));
        format!("{percent:.1} % ({ns:.0} ns)")
    };
    let (on_cpu, on_gpu) = (over(auto_cpu, cpu), over(auto_gpu, gpu));
    let ran = ran.map(|ran| ran.to_string()).unwrap_or_default();
    println!("{numbers:>10} {cpu:>11.2} {gpu:>11.2} {auto:>11.2} {on_cpu:>18} {on_gpu:>18}  {ran}");
    Ok(json!({
        "op": op, "numbers": numbers, "cpu": cpu, "gpu": gpu, "auto": auto,
        "auto_on_cpu": auto_cpu, "auto_on_gpu": auto_gpu, "ran": ran,
    }))
}

fn nothing<T>(result: Result<T>) -> Result<Option<Ran>> {
    black_box(result?);
    Ok(None)
}

/// A direct call of the GPU, in one submission.
fn read(
    context: &Context,
    op: impl FnOnce(&mut Encoder) -> Result<Tensor<f32>>,
) -> Result<Option<Ran>> {
    let mut encoder = context.encoder("direct");
    let y = op(&mut encoder)?;
    nothing(block_on(encoder.finish().submit_read(&y)?))
}

fn signs() -> Vec<f32> {
    (0..FEATURES * FEATURES).map(|i| (i * 31 % 101) as f32 / 50.0 - 1.0).collect()
}

/// Medians in microseconds of calls, in turns there and back, since a processor's clock and other
/// work on it change; and where the last of them ran.
fn time<const N: usize>(calls: [&Call; N]) -> Result<([f64; N], Option<Ran>)> {
    const SAMPLES: usize = 9;
    let mut ran = None;
    // As often that the clock is precise enough; the first calls compile, and measure.
    let mut times = [1; N];
    for (call, times) in calls.iter().zip(&mut times) {
        let _ = (call()?, call()?);
        let begin = Instant::now();
        let _ = call()?;
        *times = (50_000 / begin.elapsed().as_nanos().max(1)).clamp(1, 1000);
    }
    let (mut samples, begin) = ([const { Vec::new() }; N], Instant::now());
    while samples[0].len() < SAMPLES || begin.elapsed() < Duration::from_millis(300) {
        let back = samples[0].len() % 2;
        for i in (0..N).map(|i| if back == 0 { i } else { N - 1 - i }) {
            let start = Instant::now();
            for _ in 0..times[i] {
                let on = calls[i]()?;
                ran = if i + 1 == N { on } else { ran };
            }
            samples[i].push(start.elapsed().as_nanos() as f64 / times[i] as f64 / 1e3);
        }
    }
    let medians = samples.map(|mut samples| {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    });
    Ok((medians, ran))
}

/// The second table: operands and results stay on the GPU, which is waited for once for several
/// calls.
fn on_the_gpu(context: &Context, side: usize) -> Result<Vec<Value>> {
    const CALLS: usize = 20;
    let (auto, shape) = (Auto::new(Some(context)), [side, side]);
    let w: Vec<f32> = (0..side * side).map(|i| (i * 31 % 101) as f32 / 50.0 - 1.0).collect();
    let packed = cpu::quantize_weights(&w, shape, WeightQuantizer::absmean())?;
    let (on_cpu, both) = (cpu::InterleavedTernary::new(&packed), auto.weights(packed)?);
    let (tensor, mut lines) = (context.upload(&w, shape)?, Vec::new());
    let wait = || context.encoder("wait").submit()?.wait();
    println!("\n{side} × {side}, on the GPU\n{:>32} {:>11} {:>11}", "", "CPU", "GPU");
    let mut line = |what: String, cpu: Call, gpu: Call| -> Result<()> {
        let calls: Call = Box::new(|| {
            (0..CALLS).try_for_each(|_| gpu().map(drop))?;
            wait().map(|()| None)
        });
        let ([cpu, calls], _) = time([&cpu, &calls])?;
        let gpu = calls / CALLS as f64;
        println!("{what:>32} {cpu:>11.2} {gpu:>11.2}  {:.1} times", cpu / gpu);
        lines.push(json!({ "what": what, "cpu": cpu, "gpu": gpu }));
        Ok(())
    };
    line(
        "quantize weights".into(),
        Box::new(|| nothing(cpu::quantize_weights(&w, shape, WeightQuantizer::absmean()))),
        Box::new(|| nothing(auto.quantize_weights(&tensor, shape, WeightQuantizer::absmean()))),
    )?;
    line(
        "quantize activations".into(),
        Box::new(|| nothing(cpu::quantize_activations(&w, side, side))),
        Box::new(|| nothing(auto.quantize_activations(&tensor, side, side))),
    )?;
    for tokens in [1, 4, 16, 64, 256, 1024].into_iter().filter(|&tokens| tokens <= side) {
        let x = &w[..tokens * side];
        let on_gpu = context.upload(x, [tokens, side])?;
        line(
            format!("BitLinear, {tokens} tokens"),
            Box::new(|| nothing(cpu::BitLinear::new(&on_cpu).forward(x, tokens))),
            Box::new(|| nothing(auto.bitlinear(&on_gpu, tokens, &both))),
        )?;
    }
    Ok(lines)
}
