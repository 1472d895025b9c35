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

/// Stochastic gradient descent, with its options.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sgd {
    /// The learning rate.
    pub rate: f32,
    /// Share of the last velocity that is kept.
    pub momentum: f32,
    /// Weight decay: decay · w is added to the gradient.
    pub decay: f32,
    /// Whether the step looks ahead, as Nesterov's does.
    pub nesterov: bool,
}

impl Default for Sgd {
    /// Returns SGD with PyTorch's defaults: a learning rate of 10⁻³, without momentum and weight
    /// decay.
    fn default() -> Self {
        Self::new(1e-3)
    }
}

impl Sgd {
    /// SGD without momentum and weight decay.
    pub fn new(rate: f32) -> Self {
        Self { rate, momentum: 0.0, decay: 0.0, nesterov: false }
    }

    /// Sets the share of the last velocity that is kept.
    pub fn momentum(self, momentum: f32) -> Self {
        Self { momentum, ..self }
    }

    /// Sets the weight decay.
    pub fn decay(self, decay: f32) -> Self {
        Self { decay, ..self }
    }

    /// Uses Nesterov's momentum.
    pub fn nesterov(self) -> Self {
        Self { nesterov: true, ..self }
    }

    /// Records a step of `weights` along `gradient`, in place. `velocity` has the shape of the
    /// weights and is 0 before the first step.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `gradient` or `velocity` has another shape than
    /// `weights`.
    pub fn step<T: Float>(
        self,
        encoder: &mut Encoder,
        weights: &Tensor<f32>,
        gradient: &Tensor<T>,
        velocity: &Tensor<f32>,
    ) -> Result<()> {
        let Self { rate, momentum, decay, nesterov } = self;
        let (length, nesterov) = (weights.len() as u32, nesterov.into());
        let params = Params { length, rate, momentum, decay, nesterov };
        step(encoder, &SGD, &params, weights, gradient, &[velocity])
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::Sgd;

    /// CPU reference of [`Sgd::step`], of one weight: its new value and velocity.
    pub fn sgd(optimizer: Sgd, weight: f32, gradient: f32, velocity: f32) -> (f32, f32) {
        let Sgd { rate, momentum, decay, nesterov } = optimizer;
        let g = decay.mul_add(weight, gradient);
        let v = momentum.mul_add(velocity, g);
        ((-rate).mul_add(if nesterov { momentum.mul_add(v, g) } else { v }, weight), v)
    }
}
