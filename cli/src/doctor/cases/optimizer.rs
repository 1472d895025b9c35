//! Training: gradient clipping and the steps of optimizers.

use super::{Case, SUM, case};
use crate::doctor::trial::Trial;
use anyhow::Result;
use bitnet_wgpu::optimizer::{self, AdamW, AdamWState, Lion, Sgd};

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
        optimizer::adamw(&mut t.encoder, options, step, &w_there, &gradient_there, &state)?;
        for ((w, &gradient), moments) in w.iter_mut().zip(&gradient).zip(&mut moments) {
            (*w, *moments) = optimizer::adamw_cpu(options, step, *w, gradient, *moments);
        }
    }
    t.near(&w_there, &w, SUM);
    t.near(&state.square, &moments.iter().map(|moments| moments[1]).collect::<Vec<_>>(), SUM);
    Ok(())
}

fn clip_gradients(t: &mut Trial) -> Result<()> {
    let (mut a, mut b) = (t.floats(9000), t.floats(33));
    let (a_there, b_there) = (t.context.upload(&a, [9000])?, t.context.upload(&b, [33])?);
    let norm = optimizer::clip_gradients(&mut t.encoder, &[&a_there, &b_there], 1.5)?;
    let expected = optimizer::clip_gradients_cpu(&mut [&mut a[..], &mut b[..]], 1.5)?;
    t.near(&norm, &[expected], SUM);
    t.near(&a_there, &a, SUM);
    t.near(&b_there, &b, SUM);
    Ok(())
}

fn ema(t: &mut Trial) -> Result<()> {
    let (average, weights) = (t.floats(LEN), t.floats(LEN));
    let there = t.context.upload(&average, [LEN])?;
    optimizer::ema(&mut t.encoder, &there, &t.context.upload(&weights, [LEN])?, 0.9)?;
    t.near(
        &there,
        &average
            .iter()
            .zip(&weights)
            .map(|(&a, &w)| optimizer::ema_cpu(a, w, 0.9))
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
    optimizer::lion(
        &mut t.encoder,
        options,
        &w_there,
        &t.context.upload(&gradient, [LEN])?,
        &momentum_there,
    )?;
    let (w, momentum): (Vec<f32>, Vec<f32>) =
        (0..LEN).map(|i| optimizer::lion_cpu(options, w[i], gradient[i], momentum[i])).unzip();
    t.near(&w_there, &w, SUM);
    t.near(&momentum_there, &momentum, SUM);
    Ok(())
}

fn sgd(t: &mut Trial) -> Result<()> {
    let (w, gradient, velocity, options) =
        (t.floats(LEN), t.floats(LEN), t.floats(LEN), Sgd::new(0.1).momentum(0.9).nesterov());
    let (w_there, velocity_there) =
        (t.context.upload(&w, [LEN])?, t.context.upload(&velocity, [LEN])?);
    optimizer::sgd(
        &mut t.encoder,
        options,
        &w_there,
        &t.context.upload(&gradient, [LEN])?,
        &velocity_there,
    )?;
    let (w, velocity): (Vec<f32>, Vec<f32>) =
        (0..LEN).map(|i| optimizer::sgd_cpu(options, w[i], gradient[i], velocity[i])).unzip();
    t.near(&w_there, &w, SUM);
    t.near(&velocity_there, &velocity, SUM);
    Ok(())
}
