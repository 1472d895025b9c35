//! argmax, argmin: which element is the largest, the smallest.

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
    },
    ops::{
        reduce::{self, Axes, Geometry, Numbers, Reduction, THREADS, Ways, reduction},
        tensor::max::{SIGN, key},
    },
    shape::Shape,
};

static ARGMAX: Kernel = reduce::kernel(
    "argmax",
    &[read("x", Float("X")), read_write("y", U32)],
    &[reduction!(wgsl["shared/order", "tensor/argmax", "tensor/argmax_pair"])
        .workgroup_bytes(8 * THREADS as u32)],
);
static ARGMAX_MERGE: Kernel = reduce::kernel(
    "argmax_merge",
    &[read("parts", U32), read_write("y", U32)],
    &[reduction!(wgsl["tensor/argmax_merge", "tensor/argmax_pair"])
        .workgroup_bytes(8 * THREADS as u32)],
);

pub(super) const KERNELS: &[&Kernel] = &[&ARGMAX, &ARGMAX_MERGE];

/// The index of the largest over `axes`: of equal ones and of NaNs, which are above all, the
/// lowest; `u32::MAX` where there is nothing. It counts the elements of all axes together, in
/// row-major order. 0 is above -0.
///
/// # Errors
/// As [`sum`](fn@super::sum).
pub fn argmax<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
) -> Result<Tensor<u32>> {
    let axes = axes.into();
    let y = reduce::output(encoder, "argmax", x, axes)?;
    argmax_into(encoder, x, axes, &y)?;
    Ok(y)
}

/// [`argmax`] into a tensor of the caller, without the axes or with ones in their place.
///
/// # Errors
/// As [`sum_into`](super::sum_into).
pub fn argmax_into<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: &Tensor<u32>,
) -> Result<()> {
    record(encoder, "argmax", x, axes.into(), 0, y)
}

/// The index of the smallest over `axes`; else as [`argmax`], NaNs included, but -0 is below 0.
///
/// # Errors
/// As [`sum`](fn@super::sum).
pub fn argmin<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
) -> Result<Tensor<u32>> {
    let axes = axes.into();
    let y = reduce::output(encoder, "argmin", x, axes)?;
    argmin_into(encoder, x, axes, &y)?;
    Ok(y)
}

/// [`argmin`] into a tensor of the caller, without the axes or with ones in their place.
///
/// # Errors
/// As [`sum_into`](super::sum_into).
pub fn argmin_into<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: &Tensor<u32>,
) -> Result<()> {
    record(encoder, "argmin", x, axes.into(), SIGN, y)
}

fn record<X: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    x: &Tensor<X>,
    axes: Axes,
    flip: u32,
    y: &Tensor<u32>,
) -> Result<()> {
    let geometry = Geometry::new(op, x.shape(), axes)?;
    geometry.check(op, "the output", y.shape())?;
    let reduction =
        Reduction { first: Ways::shared(&ARGMAX), then: Ways::shared(&ARGMAX_MERGE), words: 2 };
    reduction.record(encoder, &[x], &geometry, Numbers { flip, ..Numbers::default() }, Out::set(y))
}

/// The CPU twin of [`argmax`].
///
/// # Errors
/// As [`sum_cpu`](super::sum_cpu).
pub fn argmax_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
) -> Result<Vec<u32>> {
    winners("argmax", x, shape.into(), axes.into(), 0)
}

/// The CPU twin of [`argmin`].
///
/// # Errors
/// As [`sum_cpu`](super::sum_cpu).
pub fn argmin_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
) -> Result<Vec<u32>> {
    winners("argmin", x, shape.into(), axes.into(), SIGN)
}

fn winners<X: Float>(
    op: &'static str,
    x: &[X],
    shape: Shape,
    axes: Axes,
    flip: u32,
) -> Result<Vec<u32>> {
    let pair = |at: usize, index: usize, _| {
        (key(f32::from_bits(Into::<f32>::into(x[at]).to_bits() ^ flip)), !(index as u32))
    };
    let winners = Geometry::of(op, x, shape, axes)?.reduce_cpu((0, 0), pair, Ord::max);
    Ok(winners.into_iter().map(|(_, complement)| !complement).collect())
}
