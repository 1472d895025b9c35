//! Activation functions and their gradients.

use crate::ops::op_tables::unary;
use std::f32::consts::{FRAC_1_SQRT_2, PI};

unary! {
    /// max(x, 0) of every element. Its gradient is 0 at 0.
    relu () "max(x, 0.0)" |x| x.max(0.0);
    relu_backward "select(0.0, dy, x > 0.0)" |x, dy| if x > 0.0 { dy } else { 0.0 };

    /// x of every element that is positive, slope·x of the others.
    leaky_relu (slope) "select(params.alpha * x, x, x > 0.0)" |x| if x > 0.0 { x } else { slope * x };
    leaky_relu_backward "select(params.alpha * dy, dy, x > 0.0)"
        |x, dy| if x > 0.0 { dy } else { slope * dy };

    /// max(x, 0)² of every element, the activation of BitNet b1.58 2B4T. So et al. 2021,
    /// arXiv:2109.08668.
    relu2 () ["tensor/relu2"] |x| x.max(0.0) * x.max(0.0);
    relu2_backward ["tensor/relu2"] |x, dy| dy * (2.0 * x.max(0.0));

    /// σ(x) = 1 / (1 + e^-x) of every element.
    sigmoid () ["shared/exp", "shared/sigmoid", "tensor/sigmoid"] |x| sigmoid_of(x);
    sigmoid_backward ["shared/exp", "shared/sigmoid", "tensor/sigmoid"]
        |x, dy| dy * (sigmoid_of(x) * sigmoid_of(-x));

    /// x·σ(x) of every element, also called swish. Elfwing et al. 2017, arXiv:1702.03118.
    silu () ["shared/exp", "shared/sigmoid", "tensor/silu"] |x| x * sigmoid_of(x);
    silu_backward ["shared/exp", "shared/sigmoid", "tensor/silu"]
        |x, dy| dy * (sigmoid_of(x) * x.mul_add(1.0 - sigmoid_of(x), 1.0));

    /// tanh x of every element.
    tanh () ["shared/exp", "shared/tanh", "tensor/tanh"] |x| x.tanh();
    tanh_backward ["shared/exp", "shared/tanh", "tensor/tanh"]
        |x, dy| (f64::from(dy) / f64::from(x).cosh().powi(2)) as f32;

    /// x·Φ(x) of every element, Φ being the normal distribution's cumulative function: GELU as it
    /// is defined. Hendrycks and Gimpel 2016, arXiv:1606.08415. [`gelu_tanh`] is its approximation.
    gelu () ["shared/exp", "shared/normal", "tensor/gelu"] |x| x * normal_cdf(x);
    gelu_backward ["shared/exp", "shared/normal", "tensor/gelu"]
        |x, dy| dy * (normal_cdf(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt());

    /// x·σ(2u) with u = √(2/π)·(x + 0.044715·x³), which is x·(1 + tanh u)/2, of every element: the
    /// approximation of [`gelu`] that many models are trained with.
    gelu_tanh () ["shared/exp", "shared/sigmoid", "tensor/gelu_tanh"] |x| x * sigmoid_of(2.0 * gelu_inner(x));
    gelu_tanh_backward ["shared/exp", "shared/sigmoid", "tensor/gelu_tanh"] |x, dy| {
        let (s, t) = (sigmoid_of(2.0 * gelu_inner(x)), sigmoid_of(-2.0 * gelu_inner(x)));
        dy * (s + x * s * t * 2.0 * 0.797_884_6 * (1.0 + 3.0 * 0.044_715 * x * x))
    };

    /// ln(1 + e^x) of every element.
    softplus () ["shared/exp", "shared/sigmoid", "tensor/softplus"] |x| x.max(0.0) + (-x.abs()).exp().ln_1p();
    softplus_backward ["shared/exp", "shared/sigmoid", "tensor/softplus"] |x, dy| dy * sigmoid_of(x);
}

/// 1 / (1 + e^-x), by an exponential that cannot overflow.
fn sigmoid_of(x: f32) -> f32 {
    let e = (-x.abs()).exp();
    (if x >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

/// √(2/π)·(x + 0.044715·x³).
fn gelu_inner(x: f32) -> f32 {
    0.797_884_6 * x * (0.044_715 * x).mul_add(x, 1.0)
}

/// The normal distribution's cumulative function.
fn normal_cdf(x: f32) -> f32 {
    (0.5 * libm::erfc(f64::from(-x * FRAC_1_SQRT_2))) as f32
}
