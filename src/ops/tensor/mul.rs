//! mul: y = a·b.

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::frames::{Operand, elementwise, record_two, two_inputs},
};

static MUL: Kernel = two_inputs("mul", elementwise!("frames/elementwise_2", wgsl["tensor/mul"], msl["tensor/mul"]));

pub(super) const KERNELS: &[&Kernel] = &[&MUL];

/// a·b for every element; `b` is broadcast to the shape of `a`: dimensions are aligned from the last on, and one of 1 serves for any.
///
/// # Errors
/// As [`mul_into`].
pub fn mul<T: Float>(encoder: &mut Encoder, a: &Tensor<T>, b: &Tensor<T>) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), a.shape())?;
    mul_into(encoder, a, b, &y)?;
    Ok(y)
}

/// [`mul`] into a tensor of the caller, to whose shape `a` and `b` are broadcast.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if they do not fit; what [`Encoder::dispatch`] reports.
pub fn mul_into<'y, X: Float, Y: Float>(encoder: &mut Encoder, a: &Tensor<X>, b: &Tensor<X>, y: impl Into<Out<'y, Y>>) -> Result<()> {
    let y = y.into();
    let shape = y.tensor().shape();
    let (a, b) = (Operand::broadcast("mul", "a", a, shape)?, Operand::broadcast("mul", "b", b, shape)?);
    record_two(encoder, &MUL, &a, &b, y)
}
