//! relu2: y = relu(x)². Backward: dx = dy·2·relu(x).

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::frames::{elementwise, gradient, map, one_input, two_inputs},
};

static RELU2: Kernel = one_input("relu2", elementwise!("frames/elementwise_1", wgsl["tensor/relu2"], msl["tensor/relu2"]));
static RELU2_BACKWARD: Kernel = two_inputs(
    "relu2_backward",
    elementwise!("frames/elementwise_2", wgsl["tensor/relu2", "frames/gradient"], msl["tensor/relu2", "frames/gradient"]),
);

pub(super) const KERNELS: &[&Kernel] = &[&RELU2, &RELU2_BACKWARD];

/// relu(x)² of every element.
///
/// # Errors
/// As [`relu2_into`].
pub fn relu2<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    relu2_into(encoder, x, &y)?;
    Ok(y)
}

/// [`relu2`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if it has another shape.
pub fn relu2_into<'y, X: Float, Y: Float>(encoder: &mut Encoder, x: &Tensor<X>, y: impl Into<Out<'y, Y>>) -> Result<()> {
    map(encoder, "relu2", &RELU2, x, y.into())
}

/// The gradient of [`relu2`] at `x`, where `dy` is that of its output.
///
/// # Errors
/// As [`relu2_backward_into`].
pub fn relu2_backward<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, dy: &Tensor<T>) -> Result<Tensor<T>> {
    let dx = Tensor::uninit(encoder.context(), x.shape())?;
    relu2_backward_into(encoder, x, dy, &dx)?;
    Ok(dx)
}

/// [`relu2_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `dy` or the output has another shape than `x`.
pub fn relu2_backward_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    dy: &Tensor<X>,
    dx: impl Into<Out<'y, Y>>,
) -> Result<()> {
    gradient(encoder, "relu2_backward", &RELU2_BACKWARD, x, dy, dx.into())
}

/// The CPU twin of [`relu2`]: the same bits, where nothing is subnormal.
pub fn relu2_cpu(x: f32) -> f32 {
    x.max(0.0) * x.max(0.0)
}

/// The CPU twin of [`relu2_backward`]: the same bits, where nothing is subnormal.
pub fn relu2_backward_cpu(x: f32, dy: f32) -> f32 {
    dy * (2.0 * x.max(0.0))
}
