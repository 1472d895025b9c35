//! Ops of tensors, beside burn's.

use crate::{
    ours,
    turns::{Rival, in_turns},
};
use bitnet_wgpu::{
    Context, Encoder, Result,
    optimizer::{AdamW, AdamWState},
    tensor::{self, Axes, Side},
};
use burn::{
    optim::{AdamWConfig, Optimizer as _},
    tensor::{Device, Distribution, Tensor as Burn, activation, module},
};

const ROUNDS: usize = 9;

struct Bench<'a> {
    context: &'a Context,
    device: &'a Device,
}

impl Bench<'_> {
    fn compare(&self, name: &str, ours: &dyn Fn(&mut Encoder) -> Result<()>, theirs: &mut dyn FnMut() -> Burn<2>) {
        let other = |calls: usize| {
            // What nobody keeps, fusion does not compute.
            let kept: Vec<_> = (0..calls).map(|_| theirs()).collect();
            self.device.sync().expect("it ends");
            drop(kept);
        };
        let rivals = vec![ours::rival("bitnet-wgpu", self.context, 1, |encoder, _| ours(encoder)), Rival::new("burn", other)];
        let [a, b] = &in_turns(rivals, ROUNDS)[..] else { unreachable!("two") };
        println!("| {name} | {:.1} | {:.1} | {:.2} |", 1e6 * a.median(), 1e6 * b.median(), b.ratio(a));
    }
}

/// Matrices of up to `largest` × `largest`.
pub fn compare(context: &Context, device: &Device, largest: usize) {
    println!("{}\n\n| op | ours, µs | burn, µs | ratio |\n| --- | --: | --: | --: |", context.capabilities().adapter);
    let bench = Bench { context, device };
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
        bench.compare(&format!("matmul {side}²"), &|e| tensor::matmul(&a, &b).forward(e).map(|_| ()), &mut || x.clone().matmul(y.clone()));
        bench.compare(
            &format!("matmul {side}², right side transposed"),
            &|e| tensor::matmul(&a, Side::transposed(&b)).forward(e).map(|_| ()),
            &mut || x.clone().matmul(y.clone().transpose()),
        );
    }
    let side = largest;
    let (a, b, row) = (ours(&[side, side]), ours(&[side, side]), ours(&[side]));
    let (x, y) = (theirs(side), theirs(side));
    let burn_row = Burn::<1>::ones([side], device);
    let of = |name: &str| format!("{name}, {side} × {side}");
    bench.compare(&of("softmax"), &|e| tensor::softmax(&a).forward(e).map(|_| ()), &mut || activation::softmax(x.clone(), 1));
    bench.compare(&of("layer_norm"), &|e| tensor::LayerNorm::new(&row, &row, 1e-5).forward(e, &a).map(|_| ()), &mut || {
        module::layer_norm(x.clone(), burn_row.clone(), Some(burn_row.clone()), 1e-5)
    });
    bench.compare(&of("sum of all"), &|e| tensor::sum(&a, Axes::ALL).forward(e).map(|_| ()), &mut || x.clone().sum().reshape([1, 1]));
    bench.compare(&of("sum of rows"), &|e| tensor::sum(&a, [1]).forward(e).map(|_| ()), &mut || x.clone().sum_dim(1));
    bench.compare(&of("transpose, copied"), &|e| tensor::transpose(&a).forward(e).map(|_| ()), &mut || x.clone().transpose().mul_scalar(1.5));
    bench.compare(&of("add"), &|e| tensor::add(e, &a, &b).map(|_| ()), &mut || x.clone() + y.clone());
    bench.compare(&of("gelu"), &|e| tensor::gelu(e, &a).map(|_| ()), &mut || activation::gelu(x.clone()));
    let state = AdamWState::new(context, [side, side]).expect("it fits");
    let optimizer = AdamWConfig::new().build();
    let mut burn_state = None;
    let mut weights = y.clone();
    bench.compare(&of("AdamW"), &|e| AdamW::new(1e-3).step(e, 1, &b, &a, &state), &mut || {
        let (next, state) = optimizer.step(1e-3, weights.clone(), x.clone(), burn_state.take());
        (weights, burn_state) = (next, state);
        weights.clone()
    });
}
