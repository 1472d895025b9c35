//! Where calls run, and what they take: on the CPU, on the GPU, and as [`Auto`] decides, for 2^6 to
//! 2^24 numbers.
//!
//!     cargo run --release --example auto [-- 24 [FILE]]
//!
//! Medians of several calls, in microseconds, results on the host. They are written to the file as
//! JSON.

use bitnet_wgpu::{
    Context, Result,
    auto::{Answer, Auto, AutoTernary, Target},
    bitnet, cpu,
    weights::{PackedTernary, Scales},
};
use serde_json::json;
use std::time::{Duration, Instant};

/// An op on this many numbers.
type Call = fn(&Auto, &[f32], &AutoTernary) -> Result<Answer>;

const OPS: [(&str, Call); 3] = [
    ("add", |auto, x, _| auto.add(x, x)),
    ("silu", |auto, x, _| auto.silu(x)),
    // Of rows of 1024 features, one token or many.
    ("bitlinear", |auto, x, w| auto.bitlinear(x, x.len() / FEATURES, w)),
];
const FEATURES: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    env_logger::init();
    let largest = std::env::args()
        .nth(1)
        .map_or(24, |bits| bits.parse().expect("a power of two, by its exponent"));
    let context = pollster::block_on(Context::new())?;
    let info = context.adapter_info();
    println!("{}", info.name);
    let mut found = Vec::new();
    let sides = [Some(Target::Cpu), Some(Target::Gpu), None];
    for (name, call) in OPS {
        println!("\n{name}\n{:>10} {:>12} {:>12} {:>12}  where", "numbers", "CPU", "GPU", "auto");
        let autos = sides.map(|side| Auto::new(Some(&context)).and_then(|auto| auto.always(side)));
        let autos = autos.into_iter().collect::<Result<Vec<_>>>()?;
        let packed = PackedTernary::from_values(
            FEATURES,
            FEATURES,
            &vec![1i8; FEATURES * FEATURES],
            Scales::Tensor(1.0),
        )?;
        let weights =
            autos.iter().map(|auto| auto.weights(packed.clone())).collect::<Result<Vec<_>>>()?;
        let mut last = None;
        for bits in
            (6..=largest).step_by(2).filter(|bits| name != "bitlinear" || 1 << bits >= FEATURES)
        {
            let x = vec![0.5; 1 << bits];
            // In turns, since a processor's clock and other work on it change. Often enough to
            // learn, and to be measured.
            let mut times = [const { Vec::new() }; 3];
            let begin = Instant::now();
            while times[0].len() < 7
                || (begin.elapsed() < Duration::from_millis(300) && times[0].len() < 1000)
            {
                // There and back, so that the CPU's side and Auto's follow the GPU's equally often.
                for side in if times[0].len() % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] } {
                    let start = Instant::now();
                    let answer = call(&autos[side], &x, &weights[side])?;
                    times[side].push(start.elapsed());
                    if side == 2 {
                        last = Some(answer.ran);
                    }
                }
            }
            let medians = times.map(|mut times| {
                times.sort_unstable();
                times[times.len() / 2].as_nanos() as f64 / 1e3
            });
            let on = last.map(|ran| format!("{:?}", ran.on)).unwrap_or_default();
            println!(
                "{:>10} {:>12.2} {:>12.2} {:>12.2}  {on}",
                x.len(),
                medians[0],
                medians[1],
                medians[2]
            );
            found.push(json!({ "op": name, "numbers": x.len(), "cpu": medians[0], "gpu": medians[1], "auto": medians[2] }));
        }
        last.iter().for_each(|ran| println!("{ran}"));
    }
    if let Some(path) = std::env::args().nth(2) {
        let driver = format!("{} {}", info.driver, info.driver_info);
        let found = json!({ "adapter": info.name, "backend": format!("{:?}", info.backend), "driver": driver, "us": found });
        std::fs::write(path, format!("{found:#}\n"))?;
    }
    // Products on the GPU and on the CPU are bit-identical.
    let auto = Auto::new(Some(&context))?;
    let packed = cpu::quantize_weights(
        &vec![0.25f32; 64 * 64],
        [64, 64],
        bitnet::WeightQuantizer::absmean(),
    )?;
    let w = auto.weights(packed.clone())?;
    let x: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
    assert_eq!(
        auto.bitlinear(&x, 1, &w)?.values,
        cpu::BitLinear::new(&cpu::InterleavedTernary::new(&packed)).forward(&x, 1)?
    );
    Ok(())
}
