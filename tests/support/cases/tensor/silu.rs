//! `src/ops/tensor/silu.rs`

use super::{Smooth, in_both_forms};
use crate::{Case, Near, U};
use bitnet_wgpu::{Float, f16, tensor};

pub fn cases() -> Vec<Case> {
    Smooth::all("silu").flat_map(|data| [case::<f32, f16>(&data), case::<f16, f32>(&data)]).collect()
}

fn case<X: Float, Y: Float>(data: &Smooth) -> Case {
    let twin = |x, dy| (tensor::silu_cpu(x), tensor::silu_backward_cpu(x, dy));
    data.case::<X, Y>(near, twin, |r, x, dy| {
        in_both_forms::<X, Y>(r, |e| tensor::silu(e, x), |e, y| tensor::silu_into(e, x, y))?;
        in_both_forms::<X, Y>(r, |e| tensor::silu_backward(e, x, dy), |e, dx| tensor::silu_backward_into(e, x, dy, dx))
    })
}

/// silu and its gradient. `f32` misses e^-|x| by 4 + 2·|x| of U where sums are reordered, and of that σ by the share 1 - σ; its own sum and quotient
/// are 8 U. What then strays in 1 - σ, x may enlarge; then come a sum and two products.
fn near(x: f64, dy: f64) -> (Near, Near) {
    let s = 1.0 / (1.0 + (-x).exp());
    let strays = 8.0 + (1.0 - s) * (4.0 + 2.0 * x.abs());
    let inner = 1.0 + x * (1.0 - s);
    let of_inner = x.abs() * (s * strays + 1.0) + 2.0 * inner.abs();
    let gradient = Near { exact: dy * s * inner, error: U * (dy * s).abs() * (of_inner + (strays + 3.0) * inner.abs()) };
    (Near { exact: x * s, error: U * (x * s).abs() * (strays + 2.0) }, gradient)
}
