//! variance: y = Σ (x - mean)² / (n - correction). Backward: dx = dy·2·(x - mean) / (n -
//! correction).

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        source::{EXACT, Source},
    },
    ops::{
        reduce::{self, Axes, Geometry, Numbers, Reduction, Ways, reduction},
        tensor::sum::{self, mean, mean_cpu},
    },
    shape::Shape,
    wgsl,
};

static VARIANCE: Kernel = reduce::kernel(
    "variance",
    &[read("x", Float("X")), read("mean", F32), read_write("y", F32)],
    &[reduction!(wgsl[EXACT, "tensor/variance", "frames/reduce_sum"])],
);
static VARIANCE_BACKWARD: Kernel = reduce::spread_kernel(
    "variance_backward",
    &[read("x", Float("X")), read("mean", F32), read("dy", F32), read_write("dx", Float("X"))],
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "tensor/variance_backward",
        "frames/spread"
    ])],
);

pub(super) const KERNELS: &[&Kernel] = &[&VARIANCE, &VARIANCE_BACKWARD];

/// Σ (x - mean)² / (n - correction) over `axes` of n numbers: a correction of 1 estimates what x
/// was drawn from, 0 is the variance of x itself. Where n is no more than the correction, it is NaN
/// or infinite. The mean comes first, in passes of its own, so that nothing is lost where it is
/// large beside the deviations.
///
/// # Errors
/// As [`sum`](fn@super::sum).
pub fn variance<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    correction: usize,
) -> Result<Tensor<f32>> {
    let axes = axes.into();
    let y = reduce::output(encoder, "variance", x, axes)?;
    variance_into(encoder, x, axes, correction, &y)?;
    Ok(y)
}

/// [`variance`] into a tensor of the caller, without the axes or with ones in their place.
///
/// # Errors
/// As [`sum_into`](super::sum_into).
pub fn variance_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    correction: usize,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    let (op, axes, y) = ("variance", axes.into(), y.into());
    let geometry = Geometry::new(op, x.shape(), axes)?;
    geometry.check(op, "the output", y.tensor().shape())?;
    let mean = mean(encoder, x, axes)?;
    let numbers = Numbers { divisor: divisor(&geometry, correction), ..Numbers::default() };
    Reduction { first: Ways::shared(&VARIANCE), then: sum::WAYS, words: 1 }.record(
        encoder,
        &[x, &mean],
        &geometry,
        numbers,
        y,
    )
}

/// The gradient of [`variance`] at `x`, where `dy` is that of its output: dy·2·(x - mean) / (n -
/// correction).
///
/// # Errors
/// As [`variance_backward_into`].
pub fn variance_backward<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    correction: usize,
    dy: &Tensor<f32>,
) -> Result<Tensor<X>> {
    let dx = Tensor::uninit(encoder.context(), x.shape())?;
    variance_backward_into(encoder, x, axes, correction, dy, &dx)?;
    Ok(dx)
}

/// [`variance_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `dy` has another shape than the result, or the output
/// than `x`; else as [`variance`].
pub fn variance_backward_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    correction: usize,
    dy: &Tensor<f32>,
    dx: impl Into<Out<'y, X>>,
) -> Result<()> {
    let (op, axes, dx) = ("variance_backward", axes.into(), dx.into());
    let geometry = Geometry::new(op, x.shape(), axes)?;
    geometry.check(op, "dy", dy.shape())?;
    dx.check_shape(op, x.shape())?;
    let mean = mean(encoder, x, axes)?;
    reduce::spread(
        encoder,
        &VARIANCE_BACKWARD,
        &[x, &mean, dy],
        axes,
        2.0 / divisor(&geometry, correction),
        dx,
    )
}

fn divisor(geometry: &Geometry, correction: usize) -> f32 {
    geometry.count.saturating_sub(correction) as f32
}

/// The CPU twin of [`variance`]: the same order, but devices may round squares or not.
///
/// # Errors
/// As [`sum_cpu`](super::sum_cpu).
pub fn variance_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
    correction: usize,
) -> Result<Vec<f32>> {
    let (shape, axes) = (shape.into(), axes.into());
    let (geometry, mean) = (Geometry::of("variance", x, shape, axes)?, mean_cpu(x, shape, axes)?);
    let square = |at: usize, _, output: usize| (Into::<f32>::into(x[at]) - mean[output]).powi(2);
    let sums = geometry.reduce_cpu(0.0, square, |a: f32, b| a + b);
    Ok(sums.into_iter().map(|sum| sum / divisor(&geometry, correction)).collect())
}

/// The CPU twin of [`variance_backward`], as close.
///
/// # Errors
/// As [`variance_cpu`]; [`Error::Length`](crate::Error::Length) if `dy` is not a number for each
/// output.
pub fn variance_backward_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
    correction: usize,
    dy: &[f32],
) -> Result<Vec<f32>> {
    let (shape, axes) = (shape.into(), axes.into());
    let (geometry, mean) =
        (Geometry::of("variance_backward", x, shape, axes)?, mean_cpu(x, shape, axes)?);
    geometry.check_len(dy.len())?;
    let factor = 2.0 / divisor(&geometry, correction);
    Ok(geometry.spread_cpu(|at, _, output| (x[at].into() - mean[output]) * factor * dy[output]))
}
