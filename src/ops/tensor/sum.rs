//! sum: y = Σ x over some dimensions; mean: y = Σ x / n. Their gradients are broadcasts.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        source::EXACT,
    },
    ops::{
        forward::{backward, forward},
        frames::spread,
        reduce::{self, Axes, Geometry, Numbers, Ways, reduction, reduction_alone},
        tensor::{
            argmax::{argmax, argmin},
            copy::COPY,
            max::{self, Extreme, LARGEST, LARGEST_MAGNITUDE, MAX_BACKWARD, SMALLEST},
            unary::{abs, scale},
        },
    },
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

/// A sum, mean, largest or smallest value over some dimensions: what [`sum`], [`mean`],
/// [`max`](fn@super::max), [`min`](fn@super::min) and [`absmax`](fn@super::absmax) return. The
/// result is `f32`. An output of the caller may have 1 in place of the reduced dimensions, or lack
/// them.
///
/// The gradient of a sum is `dy`, broadcast to the shape of `x`; that of a mean is `dy`·(1/n). For
/// extremes, an output's `dy` goes to the element that [`argmax`](fn@super::argmax) names.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Reduction<'a, X> {
    x: &'a Tensor<X>,
    axes: Axes,
    kind: Kind,
}

/// What a [`Reduction`] computes.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Sum,
    Mean,
    Extreme(Extreme),
}

forward!(impl['a, X: Float] Reduction<'a, X> => f32);
backward!(impl['a, X: Float] Reduction<'a, X> => X; dy: f32);

impl<'a, X: Float> Reduction<'a, X> {
    pub(super) fn new(x: &'a Tensor<X>, axes: Axes, kind: Kind) -> Self {
        Self { x, axes, kind }
    }

    /// Keeps the reduced dimensions, with a length of 1.
    pub fn keep_axes(self) -> Self {
        Self { axes: self.axes.keep(), ..self }
    }

    fn op(&self) -> &'static str {
        match self.kind {
            Kind::Sum => "sum",
            Kind::Mean => "mean",
            Kind::Extreme(extreme) => extreme.op,
        }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(Geometry::new(self.op(), self.x.shape(), self.axes)?.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let geometry = Geometry::new(self.op(), self.x.shape(), self.axes)?;
        geometry.check(self.op(), "the output", y.tensor().shape())?;
        let plain = Numbers::default();
        let (ways, numbers) = match self.kind {
            Kind::Sum => (WAYS, plain),
            Kind::Mean => (WAYS, Numbers { divisor: geometry.count as f32, ..plain }),
            Kind::Extreme(extreme) => (max::WAYS, extreme.numbers()),
        };
        reduce::Reduction { first: ways, then: ways, words: 1 }.record(
            encoder,
            &[self.x],
            &geometry,
            numbers,
            y,
        )
    }

    #[cfg(feature = "train")]
    fn gradient(self, encoder: &mut Encoder, dy: &Tensor<f32>, dx: Out<'_, X>) -> Result<()> {
        let (op, shape) = (self.op(), self.x.shape());
        let geometry = Geometry::new(op, shape, self.axes)?;
        geometry.check(op, "dy", dy.shape())?;
        dx.check_shape(op, shape)?;
        let dy = dy.reshape(geometry.kept_shape())?;
        encoder.transaction(|encoder| match self.kind {
            Kind::Sum => spread(encoder, &COPY, &[], &dy, dx),
            Kind::Mean => {
                let dy = scale(&dy, 1.0 / geometry.count as f32).forward(encoder)?;
                spread(encoder, &COPY, &[], &dy, dx)
            }
            Kind::Extreme(extreme) => self.extreme_gradient(encoder, extreme, &dy, dx),
        })
    }

    /// The gradient of an extreme: `dy` for the elements that won.
    #[cfg(feature = "train")]
    fn extreme_gradient(
        self,
        encoder: &mut Encoder,
        extreme: Extreme,
        dy: &Tensor<f32>,
        dx: Out<'_, X>,
    ) -> Result<()> {
        let Self { x, axes, .. } = self;
        if extreme.mask != u32::MAX {
            let magnitudes = abs(x).forward(encoder)?;
            let slopes = max(&magnitudes, axes).backward(encoder, dy)?;
            return abs(x).backward_into(encoder, &slopes, dx);
        }
        let winner = if extreme.flip == 0 { argmax(x, axes) } else { argmin(x, axes) };
        let winner = winner.forward(encoder)?;
        reduce::spread(encoder, &MAX_BACKWARD, &[&winner, dy], axes, 1.0, dx)
    }
}

/// Σ x over `axes`, 0 where there is nothing to add. The order follows from the shape alone: a
/// device's results are bit-identical every time, and all devices whose compilers keep the order of the
/// source give equal bits (Metal's need not for WGSL, so there is a Metal source). A thread adds at
/// most 32 numbers, then comes a tree: |error| < 41·2^-24·Σ|x| in each of at most three passes.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor::{self, Axes}};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>) -> Result<()> {
/// let columns = tensor::sum(x, [0]).forward(encoder)?; // [r, c] to [c]
/// let rows = tensor::sum(x, [1]).keep_axes().forward(encoder)?; // to [r, 1]
/// let all = tensor::sum(x, Axes::ALL).forward(encoder)?; // to []
/// # Ok(())
/// # }
/// ```
pub fn sum<X: Float>(x: &Tensor<X>, axes: impl Into<Axes>) -> Reduction<'_, X> {
    Reduction::new(x, axes.into(), Kind::Sum)
}

/// Σ x / n over `axes` of n numbers: a [`sum`], and a correctly rounded quotient; NaN where n is 0.
pub fn mean<X: Float>(x: &Tensor<X>, axes: impl Into<Axes>) -> Reduction<'_, X> {
    Reduction::new(x, axes.into(), Kind::Mean)
}

/// The largest value over `axes`; NaN if there is one, as in PyTorch; -infinity where there is
/// nothing. 0 is above -0.
pub fn max<X: Float>(x: &Tensor<X>, axes: impl Into<Axes>) -> Reduction<'_, X> {
    Reduction::new(x, axes.into(), Kind::Extreme(LARGEST))
}

/// The smallest value over `axes`; NaN if there is one; infinity where there is nothing. -0 is
/// below 0.
pub fn min<X: Float>(x: &Tensor<X>, axes: impl Into<Axes>) -> Reduction<'_, X> {
    Reduction::new(x, axes.into(), Kind::Extreme(SMALLEST))
}

/// The largest |x| over `axes`; NaN if there is one; -infinity where there is nothing.
pub fn absmax<X: Float>(x: &Tensor<X>, axes: impl Into<Axes>) -> Reduction<'_, X> {
    Reduction::new(x, axes.into(), Kind::Extreme(LARGEST_MAGNITUDE))
}

/// A sum over the dimensions that another shape lacks: what [`sum_to`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct SumTo<'a, X> {
    x: &'a Tensor<X>,
    shape: Shape,
}

/// Sums `x` over the dimensions that `shape` lacks, or has as 1 where `x` has more. It is the
/// gradient of [`broadcast_to`](super::broadcast_to), which is its own gradient. Where there is
/// nothing to sum, the result is `x` in `f32`.
pub fn sum_to<X: Float>(x: &Tensor<X>, shape: impl Into<Shape>) -> SumTo<'_, X> {
    SumTo { x, shape: shape.into() }
}

forward!(impl['a, X: Float] SumTo<'a, X> => f32);
backward!(impl['a, X: Float] SumTo<'a, X> => X; dy: f32);

impl<X: Float> SumTo<'_, X> {
    fn shape(&self) -> Result<Shape> {
        Ok(self.shape)
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let (op, dims, own) = ("sum_to", self.x.shape(), self.shape);
        y.check_shape(op, own)?;
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
            &[self.x],
            &geometry,
            Numbers::default(),
            y,
        )
    }

    #[cfg(feature = "train")]
    fn gradient(self, encoder: &mut Encoder, dy: &Tensor<f32>, dx: Out<'_, X>) -> Result<()> {
        Out::set(dy).check_shape("sum_to", self.shape)?;
        dx.check_shape("sum_to", self.x.shape())?;
        spread(encoder, &COPY, &[], dy, dx)
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`sum`](fn@crate::tensor::sum), bit-identical.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an axis that the shape lacks; [`Error::Length`] if `x` does not fill
    /// the shape.
    pub fn sum<X: Float>(
        x: &[X],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
    ) -> Result<Vec<f32>> {
        let geometry = Geometry::of("sum", x, shape.into(), axes.into())?;
        Ok(geometry.reduce_cpu(0.0, |at, _, _| x[at].into(), |a: f32, b| a + b))
    }

    /// CPU reference of [`mean`](fn@crate::tensor::mean), bit-identical.
    ///
    /// # Errors
    /// As [`sum`].
    pub fn mean<X: Float>(
        x: &[X],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
    ) -> Result<Vec<f32>> {
        let (shape, axes) = (shape.into(), axes.into());
        let count = Geometry::of("mean", x, shape, axes)?.count as f32;
        Ok(sum(x, shape, axes)?.into_iter().map(|sum| sum / count).collect())
    }
}
