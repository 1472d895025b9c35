//! Optimizers: weights in `f32` that follow their gradients, in one dispatch per tensor and in place.

pub(crate) mod adamw;
pub(crate) mod clip;
pub(crate) mod lion;
pub(crate) mod sgd;

family!(adamw, clip, lion, sgd);

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::tensor::Tensor,
};

/// All of them must have the shape of the weights.
fn check<T: Float>(op: &'static str, weights: &Tensor<f32>, gradient: &Tensor<T>, state: &[&Tensor<f32>]) -> Result<()> {
    let (expected, others) = (weights.shape(), state.iter().map(|state| ("the state", state.shape())));
    match [("the gradient", gradient.shape())].into_iter().chain(others).find(|(_, shape)| *shape != expected) {
        Some((what, found)) => Err(Error::Shape { op, what, expected: expected.to_string(), found }),
        None => Ok(()),
    }
}
