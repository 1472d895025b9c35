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
        forward::forward,
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

/// The index of an extreme over some dimensions: what [`argmax`] and [`argmin`] return. It counts
/// the elements of all reduced dimensions together, in row-major order. An output of the caller may
/// have 1 in place of those dimensions, or lack them.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct IndexReduction<'a, X> {
    x: &'a Tensor<X>,
    axes: Axes,
    op: &'static str,
    flip: u32,
}

forward!(impl['a, X: Float] IndexReduction<'a, X> => overwrite u32);

impl<X: Float> IndexReduction<'_, X> {
    /// Keeps the reduced dimensions, with a length of 1.
    pub fn keep_axes(self) -> Self {
        Self { axes: self.axes.keep(), ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(Geometry::new(self.op, self.x.shape(), self.axes)?.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, u32>) -> Result<()> {
        let geometry = Geometry::new(self.op, self.x.shape(), self.axes)?;
        geometry.check(self.op, "the output", y.tensor().shape())?;
        let reduction =
            Reduction { first: Ways::shared(&ARGMAX), then: Ways::shared(&ARGMAX_MERGE), words: 2 };
        let numbers = Numbers { flip: self.flip, ..Numbers::default() };
        reduction.record(encoder, &[self.x], &geometry, numbers, y)
    }
}

/// The index of the largest value over `axes`: the lowest index of equal values, and of NaNs, which
/// are above all; `u32::MAX` where there is nothing. 0 is above -0.
pub fn argmax<X: Float>(x: &Tensor<X>, axes: impl Into<Axes>) -> IndexReduction<'_, X> {
    IndexReduction { x, axes: axes.into(), op: "argmax", flip: 0 }
}

/// The index of the smallest value over `axes`: like [`argmax`], but -0 is below 0.
pub fn argmin<X: Float>(x: &Tensor<X>, axes: impl Into<Axes>) -> IndexReduction<'_, X> {
    IndexReduction { x, axes: axes.into(), op: "argmin", flip: SIGN }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`argmax`](fn@crate::tensor::argmax).
    ///
    /// # Errors
    /// As [`sum`](fn@crate::reference::sum).
    pub fn argmax<X: Float>(
        x: &[X],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
    ) -> Result<Vec<u32>> {
        winners("argmax", x, shape.into(), axes.into(), 0)
    }

    /// CPU reference of [`argmin`](fn@crate::tensor::argmin).
    ///
    /// # Errors
    /// As [`sum`](fn@crate::reference::sum).
    pub fn argmin<X: Float>(
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
}
