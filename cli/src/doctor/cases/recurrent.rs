//! Recurrent layers: convolution, delta rule, gates.

use super::{Case, SUM, case};
use crate::doctor::trial::Trial;
use anyhow::Result;
use bitnet_wgpu::{
    recurrent::{self, DeltaRates, DeltaShape},
    reference,
    transformer::CachePositions,
};

pub const CASES: &[Case] = &[
    case("recurrent::gated_delta", gated_delta),
    case("recurrent::gated_norm", gated_norm),
    case("recurrent::output_gate", output_gate),
    case("recurrent::short_conv", short_conv),
];

const SHAPE: DeltaShape = DeltaShape {
    key_heads: 2,
    value_heads: 4,
    key_dim: 20,
    value_dim: 37,
    tiled: true,
    regrouped: true,
};
/// A few tokens of the second of two sequences, which has had some before.
const TOKENS: usize = 5;
const RUNS: [u32; 2] = [1, 9];
/// A state is as far off as all sums before it.
const STATE: f64 = 1e-4;

fn gated_delta(t: &mut Trial) -> Result<()> {
    let heads = SHAPE.value_heads;
    let (mixed, state) = (t.floats(TOKENS * SHAPE.mixed()), t.floats(2 * SHAPE.state()));
    let (alpha, beta) = (t.floats(TOKENS * heads), t.floats(TOKENS * heads));
    let (dt_bias, decay) = (t.floats(heads), vec![-0.3; heads]);
    let upload = |numbers: &[f32], columns| t.context.upload(numbers, [TOKENS, columns]);
    let (mixed_there, alpha_there, beta_there) =
        (upload(&mixed, SHAPE.mixed())?, upload(&alpha, heads)?, upload(&beta, heads)?);
    let (dt_bias_there, decay_there) =
        (t.context.upload(&dt_bias, [heads])?, t.context.upload(&decay, [heads])?);
    let state_there = t.context.upload(&state, [2, heads, SHAPE.key_dim, SHAPE.value_dim])?;
    let rates = DeltaRates {
        alpha: &alpha_there,
        beta: &beta_there,
        dt_bias: &dt_bias_there,
        decay: &decay_there,
    };
    let runs = t.context.upload(&RUNS, [1, 2])?;
    let positions = CachePositions::new(&runs, TOKENS);
    let y = recurrent::gated_delta(SHAPE, &mixed_there, rates, positions, &state_there)
        .forward(&mut t.encoder)?;
    let rates =
        DeltaRates { alpha: &alpha[..], beta: &beta[..], dt_bias: &dt_bias[..], decay: &decay[..] };
    let mut last = state.clone();
    let expected = reference::gated_delta(SHAPE, &mixed, &rates, &mut last[SHAPE.state()..])?;
    t.near(&y, &expected, STATE);
    t.near(&state_there, &last, STATE);
    Ok(())
}

fn gated_norm(t: &mut Trial) -> Result<()> {
    let (values, stride, eps) = (SHAPE.values(), SHAPE.values() + 3, 1e-5);
    let (x, gain) = (t.floats(TOKENS * values), t.floats(SHAPE.value_dim));
    let gates = t.floats(TOKENS * stride);
    let gain_there = t.context.upload(&gain, [SHAPE.value_dim])?;
    let y = recurrent::gated_norm(
        SHAPE,
        &t.context.upload(&x, [TOKENS, values])?,
        (&gain_there, eps),
        &t.context.upload(&gates, [TOKENS, stride])?,
    )
    .forward(&mut t.encoder)?;
    t.near(&y, &reference::gated_norm(SHAPE, &x, (&gain, eps), (&gates, stride))?, SUM);
    Ok(())
}

fn output_gate(t: &mut Trial) -> Result<()> {
    let columns = 37;
    let (mut x, gates) = (t.floats(TOKENS * columns), t.floats(TOKENS * columns));
    let there = t.context.upload(&x, [TOKENS, columns])?;
    recurrent::output_gate(&mut t.encoder, &there, &t.context.upload(&gates, [TOKENS, columns])?)?;
    reference::output_gate(&mut x, &gates)?;
    t.near(&there, &x, SUM);
    Ok(())
}

fn short_conv(t: &mut Trial) -> Result<()> {
    let (channels, stride, taps) = (70, 73, 4);
    let (x, weights) = (t.floats(TOKENS * stride), t.floats(channels * taps));
    let mut state = t.floats(2 * (taps - 1) * channels);
    let state_there = t.context.upload(&state, [2, taps - 1, channels])?;
    let runs = t.context.upload(&RUNS, [1, 2])?;
    let y = recurrent::short_conv(
        &t.context.upload(&x, [TOKENS, stride])?,
        CachePositions::new(&runs, TOKENS),
        &t.context.upload(&weights, [channels, taps])?,
        &state_there,
    )
    .forward(&mut t.encoder)?;
    let own = &mut state[(taps - 1) * channels..];
    t.near(&y, &reference::short_conv(&x, stride, &weights, taps, own)?, SUM);
    t.same(&state_there, state);
    Ok(())
}
