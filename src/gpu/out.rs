//! Where an op puts its result.

use super::tensor::Tensor;
use crate::{
    element::ElementType,
    error::{Error, Result},
    shape::Shape,
};

/// A tensor of the caller that an op overwrites, or adds its result to: `forward` and `backward` of
/// an op allocate their result, `forward_into` and `backward_into` take one of these. A `&Tensor`
/// stands for [`Out::set`].
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Out, Result, Tensor, tensor};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>, y: &Tensor<f32>) -> Result<()> {
/// tensor::mul(x, x).forward_into(encoder, y)?; // y = x²
/// tensor::mul(x, x).forward_into(encoder, Out::add(y)) // y += x²
/// # }
/// ```
pub struct Out<'a, T> {
    tensor: &'a Tensor<T>,
    add: bool,
}

impl<T> Clone for Out<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<'_, T> {}

impl<'a, T> Out<'a, T> {
    /// Overwrites `tensor`.
    pub fn set(tensor: &'a Tensor<T>) -> Self {
        Self { tensor, add: false }
    }

    /// Adds to what is in `tensor`. The sum is rounded to the tensor's type; whether the product
    /// before it is rounded as well is the device's choice, so the last bit is open.
    pub fn add(tensor: &'a Tensor<T>) -> Self {
        Self { tensor, add: true }
    }

    /// The tensor.
    pub fn tensor(&self) -> &'a Tensor<T> {
        self.tensor
    }

    /// Returns whether the result is added.
    pub fn adds(&self) -> bool {
        self.add
    }
}

impl<'a, T> From<&'a Tensor<T>> for Out<'a, T> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        Self::set(tensor)
    }
}

impl<T: ElementType> Out<'_, T> {
    /// Checks that it has this shape.
    pub(crate) fn check_shape(&self, op: &'static str, shape: Shape) -> Result<()> {
        if self.tensor.shape() == shape {
            return Ok(());
        }
        Err(Error::Shape {
            op,
            what: "the output",
            expected: shape.to_string(),
            found: self.tensor.shape(),
        })
    }

    /// Checks that it is `rows × columns`, all but its last dimension being rows.
    pub(crate) fn check(&self, op: &'static str, rows: usize, columns: usize) -> Result<()> {
        if self.tensor.shape().as_matrix() == (rows, columns) {
            return Ok(());
        }
        Err(Error::Shape {
            op,
            what: "the output",
            expected: format!("[{rows}, {columns}]"),
            found: self.tensor.shape(),
        })
    }
}
