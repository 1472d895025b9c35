//! AdamW: w -= rate·(m̂ / (√v̂ + ε) + decay·w), m and v being running means of the gradient and of
//! its square, and m̂ and v̂ corrected for their start at 0. Loshchilov and Hutter 2017,
//! arXiv:1711.05101.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::optimizer::step::{self, optimizer},
    params,
    shape::Shape,
};

params! { struct Params { length: u32, shrink: f32, rate: f32, root: f32, beta1: f32, beta2: f32, eps: f32 } }

static ADAMW: Kernel = optimizer!("adamw", "optimizer/adamw", Params, ["mean", "square"]);

pub(super) const KERNELS: &[&Kernel] = &[&ADAMW];

/// The AdamW optimizer, with its options.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, optimizer::{AdamW, AdamWState}};
/// # fn f(encoder: &mut Encoder, weights: &Tensor<f32>, gradient: &Tensor<f32>) -> Result<()> {
/// let optimizer = AdamW::new(1e-3).betas(0.9, 0.95);
/// let state = AdamWState::new(encoder.context(), weights.shape())?;
/// optimizer.step(encoder, 1, weights, gradient, &state)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdamW {
    /// The learning rate.
    pub rate: f32,
    /// Decay rates of the mean, and of the mean of squares.
    pub betas: (f32, f32),
    /// Added to the root of the mean of squares, so that the quotient is finite.
    pub eps: f32,
    /// Weight decay: each step subtracts rate · decay · w.
    pub decay: f32,
}

impl Default for AdamW {
    /// Returns AdamW with PyTorch's defaults: a learning rate of 10⁻³, and those of
    /// [`new`](Self::new).
    fn default() -> Self {
        Self::new(1e-3)
    }
}

impl AdamW {
    /// AdamW with PyTorch's defaults: betas of 0.9 and 0.999, ε = 10⁻⁸, a weight decay of 0.01.
    pub fn new(rate: f32) -> Self {
        Self { rate, betas: (0.9, 0.999), eps: 1e-8, decay: 0.01 }
    }

    /// Sets the decay rates of the means.
    pub fn betas(self, of_mean: f32, of_square: f32) -> Self {
        Self { betas: (of_mean, of_square), ..self }
    }

    /// Sets ε.
    pub fn eps(self, eps: f32) -> Self {
        Self { eps, ..self }
    }

    /// Sets the weight decay.
    pub fn decay(self, decay: f32) -> Self {
        Self { decay, ..self }
    }

    /// Records step number `step` of `weights` along `gradient`, in place; the first step is 1.
    ///
    /// # Errors
    /// [`Error::Shape`] if `gradient` or `state` has another shape than `weights`;
    /// [`Error::Invalid`] for step 0.
    pub fn step<T: Float>(
        self,
        encoder: &mut Encoder,
        step: u32,
        weights: &Tensor<f32>,
        gradient: &Tensor<T>,
        state: &AdamWState,
    ) -> Result<()> {
        if step == 0 {
            return Err(Error::Invalid { op: "adamw", what: "step 0: the first is 1".into() });
        }
        let params = self.params(weights.len(), step);
        step::step(encoder, &ADAMW, &params, weights, gradient, &[&state.mean, &state.square])
    }

    /// The parameters of a step, the first being 1.
    fn params(self, length: usize, step: u32) -> Params {
        let Self { rate, betas: (beta1, beta2), eps, decay } = self;
        // How much of the mean there is after this many steps; in `f64`, since it comes near 1.
        let there = |beta: f32| 1.0 - f64::from(beta).powi(step as i32);
        let corrected = (f64::from(rate) / there(beta1)) as f32;
        let root = (1.0 / there(beta2).sqrt()) as f32;
        Params {
            length: length as u32,
            shrink: 1.0 - rate * decay,
            rate: corrected,
            root,
            beta1,
            beta2,
            eps,
        }
    }
}

/// The running means that [`AdamW::step`] updates.
#[derive(Clone, Debug)]
pub struct AdamWState {
    /// Of the gradient.
    pub mean: Tensor<f32>,
    /// Of its square.
    pub square: Tensor<f32>,
}

impl AdamWState {
    /// Zeros, for weights of this shape before the first step.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(context: &Context, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        Ok(Self { mean: Tensor::zeros(context, shape)?, square: Tensor::zeros(context, shape)? })
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::{AdamW, Params};

    /// CPU reference of [`AdamW::step`], of one weight: its new value, mean and mean of squares.
    pub fn adamw(
        optimizer: AdamW,
        step: u32,
        weight: f32,
        gradient: f32,
        [mean, square]: [f32; 2],
    ) -> (f32, [f32; 2]) {
        let Params { shrink, rate, root, beta1, beta2, eps, .. } = optimizer.params(1, step);
        let m = beta1.mul_add(mean, (1.0 - beta1) * gradient);
        let v = beta2.mul_add(square, (1.0 - beta2) * gradient * gradient);
        (shrink * weight - rate * m / v.sqrt().mul_add(root, eps), [m, v])
    }
}
