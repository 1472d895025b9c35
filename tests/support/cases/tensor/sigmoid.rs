//! `src/ops/tensor/sigmoid.rs`

use super::{Smooth, in_both_forms};
use crate::{Case, Near, U};
use bitnet_wgpu::{Float, f16, tensor};

pub fn cases() -> Vec<Case> {
    Smooth::all("sigmoid").flat_map(|data| [case::<f32, f16>(&data), case::<f16, f32>(&data)]).collect()
}

fn case<X: Float, Y: Float>(data: &Smooth) -> Case {
    let twin = |x, dy| (tensor::sigmoid_cpu(x), tensor::sigmoid_backward_cpu(x, dy));
    data.case::<X, Y>(near, twin, |r, x, dy| {
        in_both_forms::<X, Y>(r, |e| tensor::sigmoid(e, x), |e, y| tensor::sigmoid_into(e, x, y))?;
        in_both_forms::<X, Y>(r, |e| tensor::sigmoid_backward(e, x, dy), |e, dx| tensor::sigmoid_backward_into(e, x, dy, dx))
    })
}

/// σ and its gradient. `f32` misses e^-|x| by 4 + 2·|x| of U where sums are reordered, and of that σ by the share 1 - σ; its own sum and quotient
/// are 8 U. The gradient is a product of two and of `dy`.
fn near(x: f64, dy: f64) -> (Near, Near) {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (s, t) = (sigmoid(x), sigmoid(-x));
    let strays = 8.0 + t * (4.0 + 2.0 * x.abs());
    let of_other = 8.0 + s * (4.0 + 2.0 * x.abs());
    let gradient = dy * s * t;
    (Near { exact: s, error: U * s * strays }, Near { exact: gradient, error: U * gradient.abs() * (strays + of_other + 3.0) })
}
