//! Stochastic gradient descent with momentum: v = momentum·v + g, w -= rate·v, where g has decay·w
//! in it. Sutskever et al. 2013, "On the importance of initialization and momentum in deep
//! learning", as PyTorch has it.

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::optimizer::step::{optimizer, step},
    params,
};

params! { struct Params { length: u32, rate: f32, momentum: f32, decay: f32, nesterov: u32 } }

static SGD: Kernel = optimizer!("sgd", "optimizer/sgd", Params, ["velocity"]);

pub(super) const KERNELS: &[&Kernel] = &[&SGD];

/// The numbers of [`sgd`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sgd {
    /// By how much of the step weights move.
    pub rate: f32,
    /// What is kept of the last step.
    pub momentum: f32,
    /// Which share of the weights is added to the gradient.
    pub decay: f32,
    /// Look ahead by one step, as Nesterov did?
    pub nesterov: bool,
}

impl Sgd {
    /// A learning rate; no momentum, no decay.
    pub fn new(rate: f32) -> Self {
        Self { rate, momentum: 0.0, decay: 0.0, nesterov: false }
    }

    /// Sets what is kept of the last step.
    pub fn momentum(self, momentum: f32) -> Self {
        Self { momentum, ..self }
    }

    /// Sets the decay of weights.
    pub fn decay(self, decay: f32) -> Self {
        Self { decay, ..self }
    }

    /// Looks ahead.
    pub fn nesterov(self) -> Self {
        Self { nesterov: true, ..self }
    }
}

/// A step of `weights` along `gradient`. `velocity` has their shape and is 0 at the beginning.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `gradient` or `velocity` has another shape than
/// `weights`.
pub fn sgd<T: Float>(
    encoder: &mut Encoder,
    numbers: Sgd,
    weights: &Tensor<f32>,
    gradient: &Tensor<T>,
    velocity: &Tensor<f32>,
) -> Result<()> {
    let Sgd { rate, momentum, decay, nesterov } = numbers;
    let params =
        Params { length: weights.len() as u32, rate, momentum, decay, nesterov: nesterov.into() };
    step(encoder, &SGD, &params, weights, gradient, &[velocity])
}

/// The CPU twin of [`sgd`], of one weight: its new value and velocity.
pub fn sgd_cpu(numbers: Sgd, weight: f32, gradient: f32, velocity: f32) -> (f32, f32) {
    let Sgd { rate, momentum, decay, nesterov } = numbers;
    let g = decay.mul_add(weight, gradient);
    let v = momentum.mul_add(velocity, g);
    ((-rate).mul_add(if nesterov { momentum.mul_add(v, g) } else { v }, weight), v)
}
