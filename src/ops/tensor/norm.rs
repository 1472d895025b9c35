//! norm: y = sqrt(Σ x²), the L2 norm. Backward: dx = dy·x / y.

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        source::Source,
    },
    ops::reduce::{self, Axes, Geometry, Numbers, Ways, reduction},
    shape::Shape,
    wgsl,
};

static NORM: Kernel = reduce::kernel(
    "norm",
    &[read("x", Float("X")), read_write("y", F32)],
    &[
        reduction!(wgsl["tensor/norm", "frames/reduce_floats", "frames/reduce_sum"]),
        reduction!(msl["frames/reduce_sum", "tensor/norm"]),
    ],
);
static NORM_BACKWARD: Kernel = reduce::spread_kernel(
    "norm_backward",
    &[read("x", Float("X")), read("norm", F32), read("dy", F32), read_write("dx", Float("X"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/norm_backward", "frames/spread"])],
);

pub(super) const KERNELS: &[&Kernel] = &[&NORM, &NORM_BACKWARD];

/// sqrt(Σ x²) over `axes`, 0 where there is nothing to add. Squares are plain floats: numbers above
/// 2^63 give infinity, below 2^-63 nothing.
///
/// # Errors
/// As [`sum`](fn@super::sum).
pub fn norm<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
) -> Result<Tensor<f32>> {
    let axes = axes.into();
    let y = reduce::output(encoder, "norm", x, axes)?;
    norm_into(encoder, x, axes, &y)?;
    Ok(y)
}

/// [`norm`] into a tensor of the caller, without the axes or with ones in their place.
///
/// # Errors
/// As [`sum_into`](super::sum_into).
pub fn norm_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    reduce::reduce(
        encoder,
        "norm",
        Ways::shared(&NORM),
        x,
        axes.into(),
        |_| Numbers::default(),
        y.into(),
    )
}

/// The gradient of [`norm`] at `x`: dy·x / y, where `y` is what it gave and `dy` the gradient of
/// that; 0 where y is 0.
///
/// # Errors
/// As [`norm_backward_into`].
pub fn norm_backward<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: &Tensor<f32>,
    dy: &Tensor<f32>,
) -> Result<Tensor<X>> {
    let dx = Tensor::uninit(encoder.context(), x.shape())?;
    norm_backward_into(encoder, x, axes, y, dy, &dx)?;
    Ok(dx)
}

/// [`norm_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `y` or `dy` has another shape than the result, or the
/// output than `x`; else as [`norm`].
pub fn norm_backward_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: &Tensor<f32>,
    dy: &Tensor<f32>,
    dx: impl Into<Out<'y, X>>,
) -> Result<()> {
    let (op, axes, dx) = ("norm_backward", axes.into(), dx.into());
    let geometry = Geometry::new(op, x.shape(), axes)?;
    geometry.check(op, "y", y.shape())?;
    geometry.check(op, "dy", dy.shape())?;
    dx.check_shape(op, x.shape())?;
    reduce::spread(encoder, &NORM_BACKWARD, &[x, y, dy], axes, 1.0, dx)
}

/// The CPU twin of [`norm`]: the same order, but devices may round products or not.
///
/// # Errors
/// As [`sum_cpu`](super::sum_cpu).
pub fn norm_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
) -> Result<Vec<f32>> {
    let geometry = Geometry::of("norm", x, shape.into(), axes.into())?;
    let square = |at: usize, _, _| Into::<f32>::into(x[at]) * Into::<f32>::into(x[at]);
    Ok(geometry.reduce_cpu(0.0, square, |a: f32, b| a + b).into_iter().map(f32::sqrt).collect())
}

/// The CPU twin of [`norm_backward`], as close.
///
/// # Errors
/// As [`norm_cpu`]; [`Error::Length`](crate::Error::Length) if `y` or `dy` is not a number for each
/// output.
pub fn norm_backward_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
    y: &[f32],
    dy: &[f32],
) -> Result<Vec<f32>> {
    let geometry = Geometry::of("norm_backward", x, shape.into(), axes.into())?;
    geometry.check_len(y.len())?;
    geometry.check_len(dy.len())?;
    let gradient = |at: usize, _, output: usize| {
        if y[output] == 0.0 { 0.0 } else { x[at].into() / y[output] * dy[output] }
    };
    Ok(geometry.spread_cpu(gradient))
}
