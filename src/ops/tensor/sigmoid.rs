//! sigmoid: y = σ(x) = 1 / (1 + e^-x). Backward: dx = dy·σ(x)·(1 - σ(x)).

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::frames::{elementwise, gradient, map, one_input, two_inputs},
};

static SIGMOID: Kernel = one_input(
    "sigmoid",
    elementwise!(
        "frames/elementwise_1",
        wgsl["shared/exp", "shared/sigmoid", "tensor/sigmoid"],
        msl["shared/exp", "shared/sigmoid", "tensor/sigmoid"]
    ),
);
static SIGMOID_BACKWARD: Kernel = two_inputs(
    "sigmoid_backward",
    elementwise!(
        "frames/elementwise_2",
        wgsl["shared/exp", "shared/sigmoid", "tensor/sigmoid", "frames/gradient"],
        msl["shared/exp", "shared/sigmoid", "tensor/sigmoid", "frames/gradient"]
    ),
);

pub(super) const KERNELS: &[&Kernel] = &[&SIGMOID, &SIGMOID_BACKWARD];

/// σ(x) = 1 / (1 + e^-x) of every element.
///
/// # Errors
/// As [`sigmoid_into`].
pub fn sigmoid<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    sigmoid_into(encoder, x, &y)?;
    Ok(y)
}

/// [`sigmoid`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if it has another shape.
pub fn sigmoid_into<'y, X: Float, Y: Float>(encoder: &mut Encoder, x: &Tensor<X>, y: impl Into<Out<'y, Y>>) -> Result<()> {
    map(encoder, "sigmoid", &SIGMOID, x, y.into())
}

/// The gradient of [`sigmoid`] at `x`, where `dy` is that of its output.
///
/// # Errors
/// As [`sigmoid_backward_into`].
pub fn sigmoid_backward<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, dy: &Tensor<T>) -> Result<Tensor<T>> {
    let dx = Tensor::uninit(encoder.context(), x.shape())?;
    sigmoid_backward_into(encoder, x, dy, &dx)?;
    Ok(dx)
}

/// [`sigmoid_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `dy` or the output has another shape than `x`.
pub fn sigmoid_backward_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    dy: &Tensor<X>,
    dx: impl Into<Out<'y, Y>>,
) -> Result<()> {
    gradient(encoder, "sigmoid_backward", &SIGMOID_BACKWARD, x, dy, dx.into())
}

/// The CPU twin of [`sigmoid`]: within a few units in the last place, for exponentials differ.
pub fn sigmoid_cpu(x: f32) -> f32 {
    // By an exponential that cannot overflow.
    let e = (-x.abs()).exp();
    (if x >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

/// The CPU twin of [`sigmoid_backward`]: close, as [`sigmoid_cpu`].
pub fn sigmoid_backward_cpu(x: f32, dy: f32) -> f32 {
    dy * (sigmoid_cpu(x) * sigmoid_cpu(-x))
}
