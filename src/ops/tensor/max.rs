//! max, min, absmax: the largest, the smallest, the largest magnitude. One kernel, by the bits: min
//! is the max of x with its sign flipped. Backward, what an output got goes to the element that
//! won.

use crate::{
    element::Float,
    error::Result,
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
pub(super) static MAX_BACKWARD: Kernel = reduce::spread_kernel(
    "max_backward",
    &[read("winner", U32), read("dy", F32), read_write("dx", Float("X"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/max_backward", "frames/spread"])],
);

pub(super) const KERNELS: &[&Kernel] = &[&MAX, &MAX_BACKWARD];

/// The sign of a float.
pub(super) const SIGN: u32 = 0x8000_0000;

/// The kernel of every extreme.
pub(super) const WAYS: Ways = Ways::shared(&MAX);

/// Which extreme: see wgsl/tensor/max.wgsl.
#[derive(Clone, Copy)]
pub(super) struct Extreme {
    pub op: &'static str,
    pub mask: u32,
    pub flip: u32,
}
pub(super) const LARGEST: Extreme = Extreme { op: "max", mask: u32::MAX, flip: 0 };
pub(super) const SMALLEST: Extreme = Extreme { op: "min", mask: u32::MAX, flip: SIGN };
pub(super) const LARGEST_MAGNITUDE: Extreme = Extreme { op: "absmax", mask: !SIGN, flip: 0 };

impl Extreme {
    pub fn numbers(self) -> Numbers {
        Numbers { mask: self.mask, flip: self.flip, ..Numbers::default() }
    }

    fn reference<X: Float>(self, x: &[X], shape: Shape, axes: Axes) -> Result<Vec<f32>> {
        let geometry = Geometry::of(self.op, x, shape, axes)?;
        let load = |at: usize, _, _| {
            f32::from_bits((Into::<f32>::into(x[at]).to_bits() & self.mask) ^ self.flip)
        };
        let all = geometry
            .reduce_cpu(f32::NEG_INFINITY, load, |a, b| if key(a) >= key(b) { a } else { b });
        Ok(all.into_iter().map(|v| f32::from_bits(v.to_bits() ^ self.flip)).collect())
    }
}

/// Floats in order, NaNs above all: the CPU reference of wgsl/shared/order.wgsl.
pub(super) fn key(v: f32) -> u32 {
    let bits = v.to_bits();
    match v.is_nan() {
        true => u32::MAX,
        false if bits >= SIGN => !bits,
        false => bits | SIGN,
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`max`](fn@crate::tensor::max), bit-identical.
    ///
    /// # Errors
    /// As [`sum`](fn@crate::reference::sum).
    pub fn max<X: Float>(
        x: &[X],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
    ) -> Result<Vec<f32>> {
        LARGEST.reference(x, shape.into(), axes.into())
    }

    /// CPU reference of [`min`](fn@crate::tensor::min), bit-identical.
    ///
    /// # Errors
    /// As [`sum`](fn@crate::reference::sum).
    pub fn min<X: Float>(
        x: &[X],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
    ) -> Result<Vec<f32>> {
        SMALLEST.reference(x, shape.into(), axes.into())
    }

    /// CPU reference of [`absmax`](fn@crate::tensor::absmax), bit-identical.
    ///
    /// # Errors
    /// As [`sum`](fn@crate::reference::sum).
    pub fn absmax<X: Float>(
        x: &[X],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
    ) -> Result<Vec<f32>> {
        LARGEST_MAGNITUDE.reference(x, shape.into(), axes.into())
    }

    /// CPU reference of the gradient of [`max`](fn@crate::tensor::max), or of
    /// [`min`](fn@crate::tensor::min), bit-identical. `winner` is what
    /// [`argmax`](fn@crate::reference::argmax) or [`argmin`](fn@crate::reference::argmin) returns.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) if `winner` or `dy` is not a number for each output; else as [`max`].
    #[cfg(feature = "train")]
    pub fn max_backward(
        winner: &[u32],
        dy: &[f32],
        shape: impl Into<Shape>,
        axes: impl Into<Axes>,
    ) -> Result<Vec<f32>> {
        let geometry = Geometry::new("max", shape.into(), axes.into())?;
        geometry.check_len(winner.len())?;
        geometry.check_len(dy.len())?;
        let share = |_, index, output: usize| {
            if winner[output] as usize == index { dy[output] } else { 0.0 }
        };
        Ok(geometry.spread_cpu(share))
    }
}
