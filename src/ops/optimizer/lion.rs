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

/// The Lion optimizer, with its options.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Lion {
    /// The learning rate.
    pub rate: f32,
    /// Decay rates of the mean: in the step, and in the stored mean.
    pub betas: (f32, f32),
    /// Weight decay: each step subtracts rate · decay · w.
    pub decay: f32,
}

impl Default for Lion {
    /// Returns Lion with its authors' defaults: a learning rate of 10⁻⁴, and those of
    /// [`new`](Self::new).
    fn default() -> Self {
        Self::new(1e-4)
    }
}

impl Lion {
    /// Lion with its authors' defaults: betas of 0.9 and 0.99, no weight decay.
    pub fn new(rate: f32) -> Self {
        Self { rate, betas: (0.9, 0.99), decay: 0.0 }
    }

    /// Sets the decay rates of the mean.
    pub fn betas(self, in_step: f32, in_mean: f32) -> Self {
        Self { betas: (in_step, in_mean), ..self }
    }

    /// Sets the weight decay.
    pub fn decay(self, decay: f32) -> Self {
        Self { decay, ..self }
    }

    /// Records a step of `weights` along `gradient`, in place. `mean` has the shape of the weights
    /// and is 0 before the first step.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `gradient` or `mean` has another shape than
    /// `weights`.
    pub fn step<T: Float>(
        self,
        encoder: &mut Encoder,
        weights: &Tensor<f32>,
        gradient: &Tensor<T>,
        mean: &Tensor<f32>,
    ) -> Result<()> {
        let Self { rate, betas: (beta1, beta2), decay } = self;
        let (length, shrink) = (weights.len() as u32, 1.0 - rate * decay);
        let params = Params { length, shrink, rate, beta1, beta2 };
        step(encoder, &LION, &params, weights, gradient, &[mean])
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::Lion;

    /// CPU reference of [`Lion::step`], of one weight: its new value and mean.
    pub fn lion(optimizer: Lion, weight: f32, gradient: f32, mean: f32) -> (f32, f32) {
        let Lion { rate, betas: (beta1, beta2), decay } = optimizer;
        let direction = beta1.mul_add(mean, (1.0 - beta1) * gradient);
        let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
        let weight = (1.0 - rate * decay) * weight - rate * sign;
        (weight, beta2.mul_add(mean, (1.0 - beta2) * gradient))
    }
}
