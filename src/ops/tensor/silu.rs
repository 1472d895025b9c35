//! silu: y = x·σ(x). Backward: dx = dy·σ(x)·(1 + x·(1 - σ(x))). Elfwing et al. 2017, arXiv:1702.03118.

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::{
        frames::{elementwise, gradient, map, one_input, two_inputs},
        tensor::sigmoid::sigmoid_cpu,
    },
};

static SILU: Kernel = one_input(
    "silu",
    elementwise!(
        "frames/elementwise_1",
        wgsl["shared/exp", "shared/sigmoid", "tensor/silu"],
        msl["shared/exp", "shared/sigmoid", "tensor/silu"]
    ),
);
static SILU_BACKWARD: Kernel = two_inputs(
    "silu_backward",
    elementwise!(
        "frames/elementwise_2",
        wgsl["shared/exp", "shared/sigmoid", "tensor/silu", "frames/gradient"],
        msl["shared/exp", "shared/sigmoid", "tensor/silu", "frames/gradient"]
    ),
);

pub(super) const KERNELS: &[&Kernel] = &[&SILU, &SILU_BACKWARD];

/// x·σ(x) of every element, where σ(x) = 1 / (1 + e^-x).
///
/// # Errors
/// As [`silu_into`].
pub fn silu<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    silu_into(encoder, x, &y)?;
    Ok(y)
}

/// [`silu`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if it has another shape.
pub fn silu_into<'y, X: Float, Y: Float>(encoder: &mut Encoder, x: &Tensor<X>, y: impl Into<Out<'y, Y>>) -> Result<()> {
    map(encoder, "silu", &SILU, x, y.into())
}

/// The gradient of [`silu`] at `x`, where `dy` is that of its output.
///
/// # Errors
/// As [`silu_backward_into`].
pub fn silu_backward<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, dy: &Tensor<T>) -> Result<Tensor<T>> {
    let dx = Tensor::uninit(encoder.context(), x.shape())?;
    silu_backward_into(encoder, x, dy, &dx)?;
    Ok(dx)
}

/// [`silu_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `dy` or the output has another shape than `x`.
pub fn silu_backward_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    dy: &Tensor<X>,
    dx: impl Into<Out<'y, Y>>,
) -> Result<()> {
    gradient(encoder, "silu_backward", &SILU_BACKWARD, x, dy, dx.into())
}

/// The CPU twin of [`silu`]: within a few units in the last place, for exponentials differ.
pub fn silu_cpu(x: f32) -> f32 {
    x * sigmoid_cpu(x)
}

/// The CPU twin of [`silu_backward`]: close, as [`silu_cpu`].
pub fn silu_backward_cpu(x: f32, dy: f32) -> f32 {
    let s = sigmoid_cpu(x);
    dy * (s * x.mul_add(1.0 - s, 1.0))
}
