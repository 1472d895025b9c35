//! sum: y = Σ x over some dimensions; mean: y = Σ x / n. Backward they are broadcasts, which
//! `mul_into` does.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        source::EXACT,
    },
    ops::reduce::{self, Axes, Geometry, Numbers, Ways, reduction, reduction_alone},
    shape::Shape,
};

const BINDINGS: &[Binding] = &[read("x", Float("X")), read_write("y", F32)];

static SUM: Kernel = reduce::kernel(
    "sum",
    BINDINGS,
    &[
        reduction!(wgsl[EXACT, "tensor/sum", "frames/reduce_floats", "frames/reduce_sum"]),
        reduction!(msl["shared/exact", "frames/reduce_sum", "tensor/sum"]),
    ],
);

static SUM_ALONE: Kernel = reduce::kernel_alone(
    "sum_alone",
    BINDINGS,
    &[reduction_alone!(wgsl[EXACT, "tensor/sum", "frames/reduce_floats", "frames/reduce_sum"])],
);

/// Also adds what a pass of other reductions leaves.
pub(super) const WAYS: Ways = Ways { shared: &SUM, alone: Some(&SUM_ALONE) };

pub(super) const KERNELS: &[&Kernel] = &[&SUM, &SUM_ALONE];

/// Σ x over `axes`, 0 where there is nothing to add. The order follows from the shape alone: a
/// device gives the same bits every time, and all devices whose compilers keep the order of the
/// text give equal bits (Metal's need not for WGSL, so there is a Metal text). A thread adds at
/// most 32 numbers, then comes a tree: |error| < 41·2^-24·Σ|x| in each of at most three passes.
///
/// The gradient is `dy`, broadcast to the shape of `x`: [`mul_into`](super::mul_into) of `dy`, with
/// its axes kept as ones, and a one. In `f32` too for halves, whose sums would soon be none.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor::{self, Axes}};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>) -> Result<()> {
/// let columns = tensor::sum(encoder, x, [0])?; // [r, c] to [c]
/// let rows = tensor::sum(encoder, x, Axes::from([1]).keep())?; // to [r, 1]
/// let all = tensor::sum(encoder, x, Axes::ALL)?; // to []
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] for a dimension that `x` does not have.
pub fn sum<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
) -> Result<Tensor<f32>> {
    let axes = axes.into();
    let y = reduce::output(encoder, "sum", x, axes)?;
    sum_into(encoder, x, axes, &y)?;
    Ok(y)
}

/// [`sum`] into a tensor of the caller, without the axes or with ones in their place.
///
/// # Errors
/// As [`sum`]; [`Error::Shape`] if it has another shape.
pub fn sum_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    reduce::reduce(encoder, "sum", WAYS, x, axes.into(), |_| Numbers::default(), y.into())
}

/// Σ x / n over `axes` of n numbers: [`sum`], and a correctly rounded quotient; NaN where n is 0.
/// The gradient is that of a sum, divided by n: [`mul_into`](super::mul_into) of `dy` and 1/n.
///
/// # Errors
/// As [`sum`].
pub fn mean<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
) -> Result<Tensor<f32>> {
    let axes = axes.into();
    let y = reduce::output(encoder, "mean", x, axes)?;
    mean_into(encoder, x, axes, &y)?;
    Ok(y)
}

/// [`mean`] into a tensor of the caller, without the axes or with ones in their place.
///
/// # Errors
/// As [`sum_into`].
pub fn mean_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    let numbers =
        |geometry: &Geometry| Numbers { divisor: geometry.count as f32, ..Numbers::default() };
    reduce::reduce(encoder, "mean", WAYS, x, axes.into(), numbers, y.into())
}

/// The gradient of broadcasting: `x` summed over the dimensions that a tensor of `shape` has not,
/// or has as 1 where `x` has more. Where there is none, it is `x`, in `f32`.
///
/// # Errors
/// As [`sum_to_into`].
pub fn sum_to<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    shape: impl Into<Shape>,
) -> Result<Tensor<f32>> {
    let y = Tensor::uninit(encoder.context(), shape)?;
    sum_to_into(encoder, x, &y)?;
    Ok(y)
}

/// [`sum_to`] the shape of a tensor of the caller's.
///
/// # Errors
/// [`Error::Shape`] if that does not broadcast to the shape of `x`.
pub fn sum_to_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    let (op, y) = ("sum_to", y.into());
    let (dims, own) = (x.shape(), y.tensor().shape());
    let misfit = || Error::Shape {
        op,
        what: "the output",
        expected: format!("what broadcasts to {dims}"),
        found: own,
    };
    let outer = dims.rank().checked_sub(own.rank()).ok_or_else(misfit)?;
    let expanded = |&i: &usize| i < outer || own.dims()[i - outer] == 1;
    let axes: Vec<usize> = (0..dims.rank()).filter(expanded).collect();
    if (outer..dims.rank()).any(|i| !expanded(&i) && own.dims()[i - outer] != dims.dims()[i]) {
        return Err(misfit());
    }
    let geometry = Geometry::new(op, dims, axes.as_slice().into())?;
    reduce::Reduction { first: WAYS, then: WAYS, words: 1 }.record(
        encoder,
        &[x],
        &geometry,
        Numbers::default(),
        y,
    )
}

/// The CPU twin of [`sum`]: the same bits.
///
/// # Errors
/// As [`sum`]; [`Error::Length`] if `x` does not fill the shape.
pub fn sum_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
) -> Result<Vec<f32>> {
    sums("sum", x, shape.into(), axes.into()).map(|(_, sums)| sums)
}

/// The CPU twin of [`mean`]: the same bits.
///
/// # Errors
/// As [`sum_cpu`].
pub fn mean_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
) -> Result<Vec<f32>> {
    let (geometry, sums) = sums("mean", x, shape.into(), axes.into())?;
    Ok(sums.into_iter().map(|sum| sum / geometry.count as f32).collect())
}

fn sums<X: Float>(
    op: &'static str,
    x: &[X],
    shape: Shape,
    axes: Axes,
) -> Result<(Geometry, Vec<f32>)> {
    let geometry = Geometry::of(op, x, shape, axes)?;
    let sums = geometry.reduce_cpu(0.0, |at, _, _| x[at].into(), |a: f32, b| a + b);
    Ok((geometry, sums))
}
