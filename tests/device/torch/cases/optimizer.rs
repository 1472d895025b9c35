//! Steps of optimizers.

use super::{
    super::golden::{Case, Out},
    Run,
};
use bitnet_wgpu::{
    Encoder, Result, Tensor,
    optimizer::{self, AdamW, AdamWState, Ema, Lion, Sgd},
};
use support::context;

fn steps(
    c: &mut Case,
    mut step: impl FnMut(&mut Encoder, u32, &Tensor<f32>, &Tensor<f32>) -> Result<()>,
) -> Result<Vec<Out>> {
    let w = c.x(0);
    for i in 1..=3 {
        let gradient = c.x(i);
        step(&mut c.encoder, i as u32, &w, &gradient)?;
    }
    Ok(vec![w.into()])
}

fn sgd(c: &mut Case, numbers: Sgd) -> Result<Vec<Out>> {
    let velocity = Tensor::zeros(context(), [6, 5])?;
    steps(c, |e, _, w, gradient| numbers.step(e, w, gradient, &velocity))
}

/// By the names of the golden.
pub const CASES: &[(&str, Run)] = &[
    ("adamw", |c| {
        let (numbers, state) =
            (AdamW::new(0.02).betas(0.9, 0.99).decay(0.1), AdamWState::new(context(), [6, 5])?);
        steps(c, |e, step, w, gradient| numbers.step(e, step, w, gradient, &state))
    }),
    ("sgd", |c| sgd(c, Sgd::new(0.05).decay(0.1))),
    ("sgd_momentum", |c| sgd(c, Sgd::new(0.05).momentum(0.9))),
    ("sgd_nesterov", |c| sgd(c, Sgd::new(0.05).momentum(0.9).nesterov().decay(0.1))),
    ("lion", |c| {
        let mean = Tensor::zeros(context(), [6, 5])?;
        steps(c, |e, _, w, gradient| Lion::new(0.02).decay(0.1).step(e, w, gradient, &mean))
    }),
    ("ema", |c| {
        let (average, w) = (c.x(0), c.x(1));
        Ema::new(0.9).step(&mut c.encoder, &average, &w)?;
        Ok(vec![average.into()])
    }),
    ("clip_gradients", |c| {
        let (a, b) = (c.x(0), c.x(1));
        let norm = optimizer::clip_gradients(&[&a, &b], 1.5).forward(&mut c.encoder)?;
        Ok(vec![norm.into(), a.into(), b.into()])
    }),
];
