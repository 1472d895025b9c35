//! Lion: w -= rate·(sign(β1·m + (1 - β1)·g) + decay·w), then m = β2·m + (1 - β2)·g. Chen et al.
//! 2023, arXiv:2302.06675.

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::optimizer::step::{optimizer, step},
    params,
};

params! { struct Params { length: u32, shrink: f32, rate: f32, beta1: f32, beta2: f32 } }

static LION: Kernel = optimizer!("lion", "optimizer/lion", Params, ["mean"]);

pub(super) const KERNELS: &[&Kernel] = &[&LION];

/// The numbers of [`lion`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Lion {
    /// The learning rate.
    pub rate: f32,
    /// What is kept of the mean in the step, and in the mean.
    pub betas: (f32, f32),
    /// Which share of the weights goes with each step, times the rate.
    pub decay: f32,
}

impl Lion {
    /// A learning rate, and what the authors take: betas of 0.9 and 0.99, no decay.
    pub fn new(rate: f32) -> Self {
        Self { rate, betas: (0.9, 0.99), decay: 0.0 }
    }

    /// Sets what is kept of the mean.
    pub fn betas(self, in_step: f32, in_mean: f32) -> Self {
        Self { betas: (in_step, in_mean), ..self }
    }

    /// Sets the decay of weights.
    pub fn decay(self, decay: f32) -> Self {
        Self { decay, ..self }
    }
}

/// A step of `weights` along `gradient`. `mean` has their shape and is 0 at the beginning.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `gradient` or `mean` has another shape than `weights`.
pub fn lion<T: Float>(
    encoder: &mut Encoder,
    numbers: Lion,
    weights: &Tensor<f32>,
    gradient: &Tensor<T>,
    mean: &Tensor<f32>,
) -> Result<()> {
    let Lion { rate, betas: (beta1, beta2), decay } = numbers;
    let params =
        Params { length: weights.len() as u32, shrink: 1.0 - rate * decay, rate, beta1, beta2 };
    step(encoder, &LION, &params, weights, gradient, &[mean])
}

/// The CPU twin of [`lion`], of one weight: its new value and mean.
pub fn lion_cpu(numbers: Lion, weight: f32, gradient: f32, mean: f32) -> (f32, f32) {
    let Lion { rate, betas: (beta1, beta2), decay } = numbers;
    let direction = beta1.mul_add(mean, (1.0 - beta1) * gradient);
    let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
    ((1.0 - rate * decay) * weight - rate * sign, beta2.mul_add(mean, (1.0 - beta2) * gradient))
}
