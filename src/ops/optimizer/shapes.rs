//! What optimizers ask of shapes.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::tensor::Tensor,
};

/// All of them must have the shape of the weights.
pub fn check<T: Float>(op: &'static str, weights: &Tensor<f32>, gradient: &Tensor<T>, state: &[&Tensor<f32>]) -> Result<()> {
    let (expected, others) = (weights.shape(), state.iter().map(|state| ("the state", state.shape())));
    match [("the gradient", gradient.shape())].into_iter().chain(others).find(|(_, shape)| *shape != expected) {
        Some((what, found)) => Err(Error::Shape { op, what, expected: expected.to_string(), found }),
        None => Ok(()),
    }
}
