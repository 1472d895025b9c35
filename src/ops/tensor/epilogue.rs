//! What is done to a product before it is stored, in the kernel that makes it.

use super::activations::{gelu_cpu, relu_cpu, relu2_cpu, silu_cpu};
use crate::{
    error::{Error, Result},
    gpu::tensor::Tensor,
};

/// An activation function, as the op of its name ([`relu`](super::relu), [`relu2`](super::relu2), [`silu`](super::silu), [`gelu`](super::gelu)) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// max(x, 0)²
    Relu2,
    /// x·σ(x)
    Silu,
    /// x·Φ(x)
    Gelu,
}

impl Activation {
    /// Its CPU twin.
    pub fn cpu(self, x: f32) -> f32 {
        match self {
            Self::Relu => relu_cpu(x),
            Self::Relu2 => relu2_cpu(x),
            Self::Silu => silu_cpu(x),
            Self::Gelu => gelu_cpu(x),
        }
    }
}

/// How a product is finished: v becomes activation(v + bias), in `f32`, and then what the output is of. A gradient needs v + bias: keep it by a product
/// with a bias alone, and call the activation for itself.
pub struct Epilogue<'a, T> {
    bias: Option<&'a Tensor<T>>,
    activation: Option<Activation>,
}

impl<T> Clone for Epilogue<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Epilogue<'_, T> {}

impl<T> Default for Epilogue<'_, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, T> Epilogue<'a, T> {
    /// Nothing is done.
    pub fn new() -> Self {
        Self { bias: None, activation: None }
    }

    /// Adds `bias`, `[n]`, to every row.
    #[must_use]
    pub fn bias(self, bias: &'a Tensor<T>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Applies `activation`, after the bias.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation: Some(activation), ..self }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bias.is_none() && self.activation.is_none()
    }

    pub(crate) fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// The activation as wgsl/tensor/matmul_finish.wgsl knows it.
    pub(crate) fn code(&self) -> u32 {
        match self.activation {
            None => 0,
            Some(Activation::Relu) => 1,
            Some(Activation::Relu2) => 2,
            Some(Activation::Silu) => 3,
            Some(Activation::Gelu) => 4,
        }
    }

    /// The bias of `n` columns; `other`, which is not read, where there is none.
    pub(crate) fn bias_or(&self, op: &'static str, n: usize, other: &'a Tensor<T>) -> Result<&'a Tensor<T>> {
        match self.bias {
            Some(bias) if bias.shape().dims() != [n] => {
                Err(Error::Shape { op, what: "the bias", expected: format!("[{n}]"), found: bias.shape() })
            }
            Some(bias) => Ok(bias),
            None => Ok(other),
        }
    }
}
