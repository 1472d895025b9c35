//! Ops of bitnet-wgpu and of burn (https://burn.dev) on the same GPU through Vulkan, in turns: `cargo run --release [largest side]`. A time is the median
//! of rounds of several calls each, with the waiting for their end. Both begin with data on the device and make their results anew; burn has fusion
//! and autotune on, and tunes before it is timed.

use bitnet_wgpu::{
    Context, Encoder, Result,
    optimizer::{self, AdamW, AdamWState},
    tensor::{self, Axes, Side},
};
use burn::{
    optim::{AdamWConfig, Optimizer as _},
    tensor::{Device, DeviceKind, Distribution, Tensor as Burn, activation, module},
};
use pollster::block_on;
use std::time::Instant;

const ROUNDS: usize = 9;

type Ours<'a> = &'a mut dyn FnMut(&mut Encoder) -> Result<()>;

struct Bench {
    context: Context,
    device: Device,
    calls: usize,
}

impl Bench {
    /// Seconds of a call, the median of rounds.
    fn compare(&self, name: &str, ours: Ours<'_>, theirs: &mut dyn FnMut() -> Burn<2>) {
        let mut times = [Vec::new(), Vec::new()];
        let one = |ours: Ours<'_>, calls: usize| {
            let mut encoder = self.context.encoder("calls");
            (0..calls).for_each(|_| ours(&mut encoder).expect("it fits"));
            encoder.submit().expect("it runs").wait().expect("it ends");
        };
        let mut other = |calls: usize| {
            // What nobody keeps, fusion does not compute.
            let kept: Vec<_> = (0..calls).map(|_| theirs()).collect();
            self.device.sync().expect("it ends");
            drop(kept);
        };
        // Compiled and tuned.
        one(ours, 1);
        other(3);
        let start = Instant::now();
        other(1);
        let calls = ((0.02 / start.elapsed().as_secs_f64()) as usize).clamp(1, self.calls);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            one(ours, calls);
            times[0].push(start.elapsed().as_secs_f64() / calls as f64);
            let start = Instant::now();
            other(calls);
            times[1].push(start.elapsed().as_secs_f64() / calls as f64);
        }
        let [a, b] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        println!("| {name} | {:.1} | {:.1} | {:.2} |", 1e6 * a, 1e6 * b, b / a);
    }
}

fn main() {
    let largest: usize = std::env::args().nth(1).map_or(4096, |side| side.parse().expect("a number"));
    let context = block_on(Context::new()).expect("there is a GPU");
    println!("{}\n\n| op | ours, µs | burn, µs | ratio |\n| --- | --: | --: | --: |", context.capabilities().adapter);
    let device = Device::vulkan(DeviceKind::DefaultDevice);
    let bench = Bench { context, device, calls: 50 };
    let (context, device) = (&bench.context, &bench.device);
    let ours = |shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        let numbers: Vec<f32> = (0..count).map(|i| (i * 2_654_435_761 % 1000) as f32 / 500.0 - 1.0).collect();
        let flat = context.upload(&numbers, [count]).expect("it fits");
        if let [a, b] = shape { flat.reshape([*a, *b]).expect("as many") } else { flat }
    };
    let theirs = |side: usize| Burn::<2>::random([side, side], Distribution::Uniform(-1.0, 1.0), device);

    for side in [512, 1024, 2048, 4096].into_iter().filter(|&side| side <= largest) {
        let (a, b) = (ours(&[side, side]), ours(&[side, side]));
        let (x, y) = (theirs(side), theirs(side));
        bench.compare(&format!("matmul {side}²"), &mut |e| tensor::matmul(e, &a, &b).map(|_| ()), &mut || x.clone().matmul(y.clone()));
        bench.compare(
            &format!("matmul {side}², right side transposed"),
            &mut |e| tensor::matmul(e, &a, Side::transposed(&b)).map(|_| ()),
            &mut || x.clone().matmul(y.clone().transpose()),
        );
    }
    let side = largest;
    let (a, b, row) = (ours(&[side, side]), ours(&[side, side]), ours(&[side]));
    let (x, y) = (theirs(side), theirs(side));
    let burn_row = Burn::<1>::ones([side], device);
    let of = |name: &str| format!("{name}, {side} × {side}");
    bench.compare(&of("softmax"), &mut |e| tensor::softmax(e, &a).map(|_| ()), &mut || activation::softmax(x.clone(), 1));
    bench.compare(&of("layer_norm"), &mut |e| tensor::layer_norm(e, &a, &row, &row, 1e-5).map(|_| ()), &mut || {
        module::layer_norm(x.clone(), burn_row.clone(), Some(burn_row.clone()), 1e-5)
    });
    bench.compare(&of("sum of all"), &mut |e| tensor::sum(e, &a, Axes::ALL).map(|_| ()), &mut || x.clone().sum().reshape([1, 1]));
    bench.compare(&of("sum of rows"), &mut |e| tensor::sum(e, &a, [1]).map(|_| ()), &mut || x.clone().sum_dim(1));
    bench.compare(&of("transpose, copied"), &mut |e| tensor::transpose(e, &a).map(|_| ()), &mut || x.clone().transpose().mul_scalar(1.5));
    bench.compare(&of("add"), &mut |e| tensor::add(e, &a, &b).map(|_| ()), &mut || x.clone() + y.clone());
    bench.compare(&of("gelu"), &mut |e| tensor::gelu(e, &a).map(|_| ()), &mut || activation::gelu(x.clone()));
    let state = AdamWState::new(context, [side, side]).expect("it fits");
    let optimizer = AdamWConfig::new().build();
    let mut burn_state = None;
    let mut weights = y.clone();
    bench.compare(&of("AdamW"), &mut |e| optimizer::adamw(e, AdamW::new(1e-3), 1, &b, &a, &state), &mut || {
        let (next, state) = optimizer.step(1e-3, weights.clone(), x.clone(), burn_state.take());
        (weights, burn_state) = (next, state);
        weights.clone()
    });
}
