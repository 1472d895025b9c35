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
        forward::{backward, forward},
        reduce::{self, Axes, Geometry, Numbers, Reduction, Ways, reduction},
        tensor::sum::{self, mean},
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

/// A variance over some dimensions: what [`variance`] returns. An output of the caller may have 1
/// in place of those dimensions, or lack them.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Variance<'a, X> {
    x: &'a Tensor<X>,
    axes: Axes,
    correction: usize,
}

forward!(impl['a, X: Float] Variance<'a, X> => f32);
backward!(impl['a, X: Float] Variance<'a, X> => X; dy: f32);

/// Σ (x - mean)² / (n - 1) over `axes` of n numbers, like PyTorch's `var`;
/// [`correction`](Variance::correction) sets another divisor. Where n is no more than the
/// correction, it is NaN or infinite. The mean comes first, in passes of its own, so that nothing is
/// lost where it is large beside the deviations. The gradient is dy·2·(x - mean) / (n -
/// correction).
pub fn variance<X: Float>(x: &Tensor<X>, axes: impl Into<Axes>) -> Variance<'_, X> {
    Variance { x, axes: axes.into(), correction: 1 }
}

impl<X: Float> Variance<'_, X> {
    /// Divides by n - `correction`: 1, the default, estimates the variance of what `x` was drawn
    /// from; 0 gives that of `x` itself.
    pub fn correction(self, correction: usize) -> Self {
        Self { correction, ..self }
    }

    /// Keeps the reduced dimensions, with a length of 1.
    pub fn keep_axes(self) -> Self {
        Self { axes: self.axes.keep(), ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(Geometry::new("variance", self.x.shape(), self.axes)?.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let Self { x, axes, correction } = self;
        let geometry = Geometry::new("variance", x.shape(), axes)?;
        geometry.check("variance", "the output", y.tensor().shape())?;
        let mean = mean(x, axes).forward(encoder)?;
        let numbers = Numbers { divisor: divisor(&geometry, correction), ..Numbers::default() };
        Reduction { first: Ways::shared(&VARIANCE), then: sum::WAYS, words: 1 }.record(
            encoder,
            &[x, &mean],
            &geometry,
            numbers,
            y,
        )
    }

    #[cfg(feature = "train")]
    fn gradient(self, encoder: &mut Encoder, dy: &Tensor<f32>, dx: Out<'_, X>) -> Result<()> {
        let (op, Self { x, axes, correction }) = ("variance_backward", self);
        let geometry = Geometry::new(op, x.shape(), axes)?;
        geometry.check(op, "dy", dy.shape())?;
        dx.check_shape(op, x.shape())?;
        let mean = mean(x, axes).forward(encoder)?;
        let factor = 2.0 / divisor(&geometry, correction);
        reduce::spread(encoder, &VARIANCE_BACKWARD, &[x, &mean, dy], axes, factor, dx)
    }
}

fn divisor(geometry: &Geometry, correction: usize) -> f32 {
    geometry.count.saturating_sub(correction) as f32
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::tensor::sum::reference::mean;

    /// CPU reference of [`variance`](fn@crate::tensor::variance): the same order, but devices may
    /// round squares or not.
    ///
    /// # Errors
    /// As [`sum`](fn@crate::reference::sum).
    pub fn variance<X: Float>(
        x: &[X],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
        correction: usize,
    ) -> Result<Vec<f32>> {
        let (shape, axes) = (shape.into(), axes.into());
        let geometry = Geometry::of("variance", x, shape, axes)?;
        let mean = mean(x, shape, axes)?;
        let square =
            |at: usize, _, output: usize| (Into::<f32>::into(x[at]) - mean[output]).powi(2);
        let sums = geometry.reduce_cpu(0.0, square, |a: f32, b| a + b);
        Ok(sums.into_iter().map(|sum| sum / divisor(&geometry, correction)).collect())
    }

    /// CPU reference of the gradient of [`variance`](fn@crate::tensor::variance), as close.
    ///
    /// # Errors
    /// As [`variance`]; [`Error::Length`](crate::Error::Length) if `dy` is not a number for each
    /// output.
    #[cfg(feature = "train")]
    pub fn variance_backward<X: Float>(
        x: &[X],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
        correction: usize,
        dy: &[f32],
    ) -> Result<Vec<f32>> {
        let (shape, axes) = (shape.into(), axes.into());
        let geometry = Geometry::of("variance_backward", x, shape, axes)?;
        let mean = mean(x, shape, axes)?;
        geometry.check_len(dy.len())?;
        let factor = 2.0 / divisor(&geometry, correction);
        Ok(geometry.spread_cpu(|at, _, output| (x[at].into() - mean[output]) * factor * dy[output]))
    }
}
