//! Training: gradient clipping and the steps of optimizers.

use super::{Case, SUM, case};
use crate::doctor::trial::Trial;
use anyhow::Result;
use bitnet_wgpu::{
    optimizer::{self, AdamW, AdamWState, Ema, Lion, Sgd},
    reference,
};

/// A few workgroups and a part of one.
const LEN: usize = 1000;

pub const CASES: &[Case] = &[
    case("optimizer::adamw", adamw),
    case("optimizer::clip_gradients", clip_gradients),
    case("optimizer::ema", ema),
    case("optimizer::lion", lion),
    case("optimizer::sgd", sgd),
];

fn adamw(t: &mut Trial) -> Result<()> {
    let (mut w, gradient, options) = (t.floats(LEN), t.floats(LEN), AdamW::new(0.1).decay(0.01));
    let (w_there, gradient_there, state) = (
        t.context.upload(&w, [LEN])?,
        t.context.upload(&gradient, [LEN])?,
        AdamWState::new(&t.context, [LEN])?,
    );
    let mut moments = vec![[0.0; 2]; LEN];
    for step in 1..=2 {
        options.step(&mut t.encoder, step, &w_there, &gradient_there, &state)?;
        for ((w, &gradient), moments) in w.iter_mut().zip(&gradient).zip(&mut moments) {
            (*w, *moments) = reference::adamw(options, step, *w, gradient, *moments);
        }
    }
    t.near(&w_there, &w, SUM);
    t.near(&state.square, &moments.iter().map(|moments| moments[1]).collect::<Vec<_>>(), SUM);
    Ok(())
}

fn clip_gradients(t: &mut Trial) -> Result<()> {
    let (mut a, mut b) = (t.floats(9000), t.floats(33));
    let (a_there, b_there) = (t.context.upload(&a, [9000])?, t.context.upload(&b, [33])?);
    let norm = optimizer::clip_gradients(&[&a_there, &b_there], 1.5).forward(&mut t.encoder)?;
    let expected = reference::clip_gradients(&mut [&mut a[..], &mut b[..]], 1.5)?;
    t.near(&norm, &[expected], SUM);
    t.near(&a_there, &a, SUM);
    t.near(&b_there, &b, SUM);
    Ok(())
}

fn ema(t: &mut Trial) -> Result<()> {
    let (average, weights) = (t.floats(LEN), t.floats(LEN));
    let there = t.context.upload(&average, [LEN])?;
    Ema::new(0.9).step(&mut t.encoder, &there, &t.context.upload(&weights, [LEN])?)?;
    t.near(
        &there,
        &average
            .iter()
            .zip(&weights)
            .map(|(&a, &w)| reference::ema(Ema::new(0.9), a, w))
            .collect::<Vec<_>>(),
        SUM,
    );
    Ok(())
}

fn lion(t: &mut Trial) -> Result<()> {
    let (w, gradient, momentum, options) =
        (t.floats(LEN), t.floats(LEN), t.floats(LEN), Lion::new(0.1).decay(0.01));
    let (w_there, momentum_there) =
        (t.context.upload(&w, [LEN])?, t.context.upload(&momentum, [LEN])?);
    options.step(
        &mut t.encoder,
        &w_there,
        &t.context.upload(&gradient, [LEN])?,
        &momentum_there,
    )?;
    let (w, momentum): (Vec<f32>, Vec<f32>) =
        (0..LEN).map(|i| reference::lion(options, w[i], gradient[i], momentum[i])).unzip();
    t.near(&w_there, &w, SUM);
    t.near(&momentum_there, &momentum, SUM);
    Ok(())
}

fn sgd(t: &mut Trial) -> Result<()> {
    let (w, gradient, velocity, options) =
        (t.floats(LEN), t.floats(LEN), t.floats(LEN), Sgd::new(0.1).momentum(0.9).nesterov());
    let (w_there, velocity_there) =
        (t.context.upload(&w, [LEN])?, t.context.upload(&velocity, [LEN])?);
    options.step(
        &mut t.encoder,
        &w_there,
        &t.context.upload(&gradient, [LEN])?,
        &velocity_there,
    )?;
    let (w, velocity): (Vec<f32>, Vec<f32>) =
        (0..LEN).map(|i| reference::sgd(options, w[i], gradient[i], velocity[i])).unzip();
    t.near(&w_there, &w, SUM);
    t.near(&velocity_there, &velocity, SUM);
    Ok(())
}
