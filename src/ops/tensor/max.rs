//! max, min, absmax: the largest, the smallest, the largest magnitude. One kernel, by the bits: min
//! is the max of x with its sign flipped. Backward, what an output got goes to the element that
//! won.

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

static MAX: Kernel = reduce::kernel(
    "max",
    &[read("x", Float("X")), read_write("y", F32)],
    &[
        reduction!(wgsl["shared/order", "tensor/max"]),
        reduction!(msl["shared/order", "tensor/max"]),
    ],
);
static MAX_BACKWARD: Kernel = reduce::spread_kernel(
    "max_backward",
    &[read("winner", U32), read("dy", F32), read_write("dx", Float("X"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/max_backward", "frames/spread"])],
);

pub(super) const KERNELS: &[&Kernel] = &[&MAX, &MAX_BACKWARD];

/// The sign of a float.
pub(super) const SIGN: u32 = 0x8000_0000;

/// Which extreme: see wgsl/tensor/max.wgsl.
#[derive(Clone, Copy)]
struct Extreme {
    op: &'static str,
    mask: u32,
    flip: u32,
}
const LARGEST: Extreme = Extreme { op: "max", mask: u32::MAX, flip: 0 };
const SMALLEST: Extreme = Extreme { op: "min", mask: u32::MAX, flip: SIGN };
const LARGEST_MAGNITUDE: Extreme = Extreme { op: "absmax", mask: !SIGN, flip: 0 };

impl Extreme {
    fn make<X: Float>(
        self,
        encoder: &mut Encoder,
        x: &Tensor<X>,
        axes: Axes,
    ) -> Result<Tensor<f32>> {
        let y = reduce::output(encoder, self.op, x, axes)?;
        self.record(encoder, x, axes, Out::set(&y))?;
        Ok(y)
    }

    fn record<X: Float>(
        self,
        encoder: &mut Encoder,
        x: &Tensor<X>,
        axes: Axes,
        y: Out<'_, f32>,
    ) -> Result<()> {
        let numbers = Numbers { mask: self.mask, flip: self.flip, ..Numbers::default() };
        reduce::reduce(encoder, self.op, Ways::shared(&MAX), x, axes, |_| numbers, y)
    }

    fn cpu<X: Float>(self, x: &[X], shape: Shape, axes: Axes) -> Result<Vec<f32>> {
        let geometry = Geometry::of(self.op, x, shape, axes)?;
        let load = |at: usize, _, _| {
            f32::from_bits((Into::<f32>::into(x[at]).to_bits() & self.mask) ^ self.flip)
        };
        let all = geometry
            .reduce_cpu(f32::NEG_INFINITY, load, |a, b| if key(a) >= key(b) { a } else { b });
        Ok(all.into_iter().map(|v| f32::from_bits(v.to_bits() ^ self.flip)).collect())
    }
}

/// Floats in order, NaNs above all: the CPU twin of wgsl/shared/order.wgsl.
pub(super) fn key(v: f32) -> u32 {
    let bits = v.to_bits();
    match v.is_nan() {
        true => u32::MAX,
        false if bits >= SIGN => !bits,
        false => bits | SIGN,
    }
}

/// The largest over `axes`; NaN if there is one, as in PyTorch; -infinity where there is nothing. 0
/// is above -0.
///
/// The gradient is [`max_backward`], of the index that [`argmax`](fn@super::argmax) gives.
///
/// # Errors
/// As [`sum`](fn@super::sum).
pub fn max<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
) -> Result<Tensor<f32>> {
    LARGEST.make(encoder, x, axes.into())
}

/// [`max`] into a tensor of the caller, without the axes or with ones in their place.
///
/// # Errors
/// As [`sum_into`](super::sum_into).
pub fn max_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    LARGEST.record(encoder, x, axes.into(), y.into())
}

/// The smallest over `axes`; NaN if there is one, infinity where there is nothing. The gradient is
/// [`max_backward`], of the index that [`argmin`](fn@super::argmin) gives.
///
/// # Errors
/// As [`sum`](fn@super::sum).
pub fn min<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
) -> Result<Tensor<f32>> {
    SMALLEST.make(encoder, x, axes.into())
}

/// [`min`] into a tensor of the caller, without the axes or with ones in their place.
///
/// # Errors
/// As [`sum_into`](super::sum_into).
pub fn min_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    SMALLEST.record(encoder, x, axes.into(), y.into())
}

/// The largest |x| over `axes`; NaN if there is one, -infinity where there is nothing. Its gradient
/// is that of [`max`] of [`abs`](super::abs): the winner of |x| gets `dy` by [`max_backward`], and
/// its sign by [`abs_backward`](super::abs_backward).
///
/// # Errors
/// As [`sum`](fn@super::sum).
pub fn absmax<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
) -> Result<Tensor<f32>> {
    LARGEST_MAGNITUDE.make(encoder, x, axes.into())
}

/// [`absmax`] into a tensor of the caller, without the axes or with ones in their place.
///
/// # Errors
/// As [`sum_into`](super::sum_into).
pub fn absmax_into<'y, X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    axes: impl Into<Axes>,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    LARGEST_MAGNITUDE.record(encoder, x, axes.into(), y.into())
}

/// The gradient of [`max`] or [`min`], `shape` being that of its input: `dy` for the element that
/// won, 0 for others. `winner` is what [`argmax`](fn@super::argmax) or [`argmin`](super::argmin)
/// gives.
///
/// # Errors
/// As [`max_backward_into`].
pub fn max_backward<X: Float>(
    encoder: &mut Encoder,
    winner: &Tensor<u32>,
    dy: &Tensor<f32>,
    axes: impl Into<Axes>,
    shape: impl Into<Shape>,
) -> Result<Tensor<X>> {
    let dx = Tensor::uninit(encoder.context(), shape)?;
    max_backward_into(encoder, winner, dy, axes, &dx)?;
    Ok(dx)
}

/// [`max_backward`] into a tensor of the caller, of the input's shape.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `winner` or `dy` has another shape than the result;
/// else as [`max`].
pub fn max_backward_into<'y, X: Float>(
    encoder: &mut Encoder,
    winner: &Tensor<u32>,
    dy: &Tensor<f32>,
    axes: impl Into<Axes>,
    dx: impl Into<Out<'y, X>>,
) -> Result<()> {
    let (op, axes, dx) = ("max_backward", axes.into(), dx.into());
    let geometry = Geometry::new(op, dx.tensor().shape(), axes)?;
    geometry.check(op, "winner", winner.shape())?;
    geometry.check(op, "dy", dy.shape())?;
    reduce::spread(encoder, &MAX_BACKWARD, &[winner, dy], axes, 1.0, dx)
}

/// The CPU twin of [`max`]: the same bits.
///
/// # Errors
/// As [`sum_cpu`](super::sum_cpu).
pub fn max_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
) -> Result<Vec<f32>> {
    LARGEST.cpu(x, shape.into(), axes.into())
}

/// The CPU twin of [`min`]: the same bits.
///
/// # Errors
/// As [`sum_cpu`](super::sum_cpu).
pub fn min_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
) -> Result<Vec<f32>> {
    SMALLEST.cpu(x, shape.into(), axes.into())
}

/// The CPU twin of [`absmax`]: the same bits.
///
/// # Errors
/// As [`sum_cpu`](super::sum_cpu).
pub fn absmax_cpu<X: Float>(
    x: &[X],
    shape: impl Into<Shape>,
    axes: impl Into<Axes>,
) -> Result<Vec<f32>> {
    LARGEST_MAGNITUDE.cpu(x, shape.into(), axes.into())
}

/// The CPU twin of [`max_backward`]: the same bits.
///
/// # Errors
/// [`Error::Length`](crate::Error::Length) if `winner` or `dy` is not a number for each output;
/// else as [`max_cpu`].
pub fn max_backward_cpu(
    winner: &[u32],
    dy: &[f32],
    axes: impl Into<Axes>,
    shape: impl Into<Shape>,
) -> Result<Vec<f32>> {
    let geometry = Geometry::new("max_backward", shape.into(), axes.into())?;
    geometry.check_len(winner.len())?;
    geometry.check_len(dy.len())?;
    Ok(geometry.spread_cpu(
        |_, index, output| if winner[output] as usize == index { dy[output] } else { 0.0 },
    ))
}
