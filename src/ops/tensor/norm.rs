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
    ops::{
        forward::{backward, forward},
        reduce::{self, Axes, Geometry, Numbers, Reduction, Ways, reduction},
    },
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

/// An L2 norm over some dimensions: what [`norm`] returns. An output of the caller may have 1 in
/// place of those dimensions, or lack them.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct VectorNorm<'a, X> {
    x: &'a Tensor<X>,
    axes: Axes,
}

forward!(impl['a, X: Float] VectorNorm<'a, X> => f32);
backward!(impl['a, X: Float] VectorNorm<'a, X> => X; y: f32, dy: f32);

/// sqrt(Σ x²) over `axes`, 0 where there is nothing to add. Squares are plain floats: numbers above
/// 2^63 give infinity, below 2^-63 nothing. The gradient is dy·x / y, 0 where y is 0.
pub fn norm<X: Float>(x: &Tensor<X>, axes: impl Into<Axes>) -> VectorNorm<'_, X> {
    VectorNorm { x, axes: axes.into() }
}

impl<X: Float> VectorNorm<'_, X> {
    /// Keeps the reduced dimensions, with a length of 1.
    pub fn keep_axes(self) -> Self {
        Self { axes: self.axes.keep(), ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(Geometry::new("norm", self.x.shape(), self.axes)?.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let geometry = Geometry::new("norm", self.x.shape(), self.axes)?;
        geometry.check("norm", "the output", y.tensor().shape())?;
        let ways = Ways::shared(&NORM);
        Reduction { first: ways, then: ways, words: 1 }.record(
            encoder,
            &[self.x],
            &geometry,
            Numbers::default(),
            y,
        )
    }

    #[cfg(feature = "train")]
    fn gradient(
        self,
        encoder: &mut Encoder,
        y: &Tensor<f32>,
        dy: &Tensor<f32>,
        dx: Out<'_, X>,
    ) -> Result<()> {
        let (op, x) = ("norm_backward", self.x);
        let geometry = Geometry::new(op, x.shape(), self.axes)?;
        geometry.check(op, "y", y.shape())?;
        geometry.check(op, "dy", dy.shape())?;
        dx.check_shape(op, x.shape())?;
        reduce::spread(encoder, &NORM_BACKWARD, &[x, y, dy], self.axes, 1.0, dx)
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`norm`](fn@crate::tensor::norm): the same order, but devices may round
    /// products or not.
    ///
    /// # Errors
    /// As [`sum`](fn@crate::reference::sum).
    pub fn norm<X: Float>(
        x: &[X],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
    ) -> Result<Vec<f32>> {
        let geometry = Geometry::of("norm", x, shape.into(), axes.into())?;
        let square = |at: usize, _, _| Into::<f32>::into(x[at]) * Into::<f32>::into(x[at]);
        Ok(geometry.reduce_cpu(0.0, square, |a: f32, b| a + b).into_iter().map(f32::sqrt).collect())
    }

    /// CPU reference of the gradient of [`norm`](fn@crate::tensor::norm), as close.
    ///
    /// # Errors
    /// As [`norm`]; [`Error::Length`](crate::Error::Length) if `y` or `dy` is not a number for each
    /// output.
    #[cfg(feature = "train")]
    pub fn norm_backward<X: Float>(
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
}
