//! `src/ops/tensor/activations.rs`

use super::unary::{any, near, the_reference, times, unary};
use crate::{Case, Near, U};
use bitnet_wgpu::{
    reference,
    tensor::{self, f16},
};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

pub fn cases() -> Vec<Case> {
    vec![
        unary!(relu, relu_backward, (), any, the_reference),
        unary!(leaky_relu, leaky_relu_backward, (0.01), any, the_reference),
        unary!(relu2, relu2_backward, (), any, the_reference),
        unary!(sigmoid, sigmoid_backward, (), any, |x, dy, _| (
            sigma(x, 0.0),
            times(product(sigma(x, 0.0), sigma(-x, 0.0)), dy, 2.0)
        )),
        unary!(silu, silu_backward, (), any, silu),
        unary!(tanh, tanh_backward, (), any, tanh),
        unary!(gelu, gelu_backward, (), any, gelu),
        unary!(gelu_tanh, gelu_tanh_backward, (), any, gelu_tanh),
        unary!(softplus, softplus_backward, (), any, softplus),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub fn product(a: Near, b: Near) -> Near {
    Near {
        exact: a.exact * b.exact,
        error: a.error * b.exact.abs() + b.error * a.exact.abs() + U * (a.exact * b.exact).abs(),
    }
}

pub fn sum(a: Near, b: Near) -> Near {
    Near {
        exact: a.exact + b.exact,
        error: a.error + b.error + U * (a.exact.abs() + b.exact.abs()),
    }
}

/// σ of an x that is off by `units` of U: `f32` misses e^-|x| by 4 + 2·|x| of them where sums are
/// reordered, and of that σ by the share 1 - σ; its own sum and quotient are 8.
pub fn sigma(x: f64, units: f64) -> Near {
    let other = 1.0 / (1.0 + x.exp());
    near(1.0 / (1.0 + (-x).exp()), 8.0 + other * (4.0 + (2.0 + units) * x.abs()))
}

/// x·σ(x), and its gradient times dy.
pub fn silu(x: f64, dy: f64, _: [f32; 2]) -> (Near, Near) {
    let s = sigma(x, 0.0);
    // 1 - σ is no better than σ.
    let inner =
        Near { exact: 1.0 + x * (1.0 - s.exact), error: x.abs() * (s.error + 2.0 * U) + 2.0 * U };
    (times(s, x, 1.0), times(product(s, inner), dy, 2.0))
}

fn tanh(x: f64, dy: f64, _: [f32; 2]) -> (Near, Near) {
    let (t, e) = (x.tanh(), (-2.0 * x.abs()).exp());
    // Sum, difference and quotient are 10 units of U, the exponential is off by 4 + 4·|x|, and its
    // share counts twice.
    let forward = Near { exact: t, error: U * (10.0 * t.abs() + e * (8.0 + 8.0 * x.abs())) };
    let forward = if x.abs() < 0.56 { near(t, 4.0) } else { forward };
    (forward, near(dy / x.cosh().powi(2), 24.0 + 4.0 * x.abs()))
}

fn gelu(x: f64, dy: f64, _: [f32; 2]) -> (Near, Near) {
    // The polynomial, its quotient and the exponential are 40 units of U, and the square of x may
    // be off by one.
    let tail = 0.5 * libm::erfc(x.abs() * FRAC_1_SQRT_2);
    let below = 0.5 * libm::erfc(-x * FRAC_1_SQRT_2);
    let below = Near { exact: below, error: U * (tail * (40.0 + 3.0 * x * x) + below) + 1e-37 };
    let density = near((-0.5 * x * x).exp() / (2.0 * PI).sqrt(), 10.0 + 3.0 * x * x);
    (times(below, x, 1.0), times(sum(below, times(density, x, 1.0)), dy, 1.0))
}

pub fn gelu_tanh(x: f64, dy: f64, _: [f32; 2]) -> (Near, Near) {
    let twice = 2.0 * (2.0 / PI).sqrt() * x * (1.0 + 0.044715 * x * x);
    let slope = 2.0 * (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
    let (s, t) = (sigma(twice, 8.0), sigma(-twice, 8.0));
    (times(s, x, 1.0), times(sum(s, times(product(s, t), x * slope, 6.0)), dy, 1.0))
}

pub fn softplus(x: f64, dy: f64, _: [f32; 2]) -> (Near, Near) {
    let log = (-x.abs()).exp().ln_1p();
    let forward = sum(near(x.max(0.0), 0.0), near(log, 20.0 + 2.0 * x.abs()));
    (forward, times(sigma(x, 0.0), dy, 1.0))
}
