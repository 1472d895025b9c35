//! copy and broadcast_to: numbers as they are, elsewhere. Backward, they are sums.

use super::{copy::COPY, sum::sum_to};
use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::{
        forward::backward,
        frames::{map, spread},
    },
    shape::Shape,
};

pub(super) const KERNELS: &[&Kernel] = &[];

/// A copy, of one shape or broadcast: what [`copy`] and [`broadcast_to`] return. The gradient is
/// the sum of `dy` over what `x` was repeated for.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Broadcast<'a, T> {
    x: &'a Tensor<T>,
    shape: Shape,
}

/// `x`, to be copied or added to a tensor of the caller, to whose shape it is broadcast and in
/// whose type it is rounded. ([`Tensor::duplicate`] makes a copy at once.)
pub fn copy<T: Float>(x: &Tensor<T>) -> Broadcast<'_, T> {
    Broadcast { x, shape: x.shape() }
}

/// `x`, broadcast to a shape: dimensions are aligned from the last on, and one of 1 serves for any.
pub fn broadcast_to<T: Float>(x: &Tensor<T>, shape: impl Into<Shape>) -> Broadcast<'_, T> {
    Broadcast { x, shape: shape.into() }
}

backward!(impl['a, T: Float] Broadcast<'a, T> => T; dy: T);

impl<T: Float> Broadcast<'_, T> {
    /// Records the copy and returns it, a new tensor.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not broadcast to the shape.
    pub fn forward(self, encoder: &mut Encoder) -> Result<Tensor<T>> {
        let y = Tensor::uninit(encoder.context(), self.shape)?;
        self.forward_into(encoder, &y)?;
        Ok(y)
    }

    /// Records a copy to a tensor of the caller, of either type of float, or adds `x` to one
    /// ([`Out::add`]).
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not broadcast to the shape of the tensor.
    pub fn forward_into<'out, Y: Float>(
        self,
        encoder: &mut Encoder,
        out: impl Into<Out<'out, Y>>,
    ) -> Result<()> {
        spread(encoder, &COPY, &[], self.x, out.into())
    }

    #[cfg(feature = "train")]
    fn gradient(self, encoder: &mut Encoder, dy: &Tensor<T>, dx: Out<'_, T>) -> Result<()> {
        let sum = sum_to(dy, self.x.shape()).forward(encoder)?;
        map(encoder, &COPY, &[], &sum, dx)
    }
}
