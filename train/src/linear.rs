//! Linear layers of one input, with their adapters, and their gradients.

use crate::{
    error::Result,
    network::{Network, Value, Weight},
    settings::LinearMode,
};
use bitnet_wgpu::{
    Encoder, Out, Tensor,
    bitnet::{ActivationQuantizer, ActivationType, BitLinear, WeightQuantizer},
    tensor::{self, Side},
    weights::TernaryMatrix,
};

/// The matrix of a linear layer as a step multiplied by it.
pub enum Matrix {
    Ternary(TernaryMatrix),
    /// The parameter itself.
    Dense(Tensor<f32>),
}

/// What linear layers multiplied, for their gradients.
pub struct LinearSaved {
    /// What the matrices were multiplied by: of int8 activations, their numbers. For weights that do
    /// not learn, the input, by which their adapters are multiplied.
    x: Tensor<f32>,
    matrices: Vec<Matrix>,
    /// factor·x·Aᵀ of each layer with an adapter, `[tokens, rank]`.
    down: Vec<Option<Tensor<f32>>>,
}

impl Network {
    /// Records linear layers of one input. Float weights are made ternary anew, and the input is
    /// quantized once for all of them.
    pub fn linear(
        &self,
        e: &mut Encoder,
        parts: &[usize],
        input: Tensor<f32>,
    ) -> Result<(Value, LinearSaved)> {
        let matrices =
            parts.iter().map(|&part| self.matrix(e, part)).collect::<Result<Vec<_>>>()?;
        let (products, x) = match self.linear {
            LinearMode::Int8 => {
                let codes = ActivationQuantizer::int8().quantize(e, &input)?;
                let mut product = |matrix: &Matrix| match matrix {
                    Matrix::Ternary(w) => BitLinear::new(w).forward(e, &codes),
                    Matrix::Dense(w) => tensor::matmul(&input, Side::transposed(w)).forward(e),
                };
                let products: bitnet_wgpu::Result<Value> =
                    matrices.iter().map(&mut product).collect();
                let products = products?;
                let x = if self.frozen { input } else { codes.dequantize(e)? };
                (products, x)
            }
            LinearMode::Float | LinearMode::Dense => {
                let mut product = |matrix: &Matrix| match matrix {
                    Matrix::Ternary(w) => {
                        BitLinear::new(w).activation_type(ActivationType::Float).forward(e, &input)
                    }
                    Matrix::Dense(w) => tensor::matmul(&input, Side::transposed(w)).forward(e),
                };
                let products: bitnet_wgpu::Result<Value> =
                    matrices.iter().map(&mut product).collect();
                (products?, input)
            }
        };
        let mut down = Vec::with_capacity(parts.len());
        for (&part, y) in parts.iter().zip(&products) {
            down.push(self.adapter_forward(e, part, &x, y)?);
        }
        Ok((products, LinearSaved { x, matrices, down }))
    }

    /// The matrix of a layer in this step.
    fn matrix(&self, e: &mut Encoder, part: usize) -> Result<Matrix> {
        Ok(match &self.weights[part] {
            Weight::Ternary(w) => Matrix::Ternary(w.clone()),
            Weight::Float(w) if self.linear == LinearMode::Dense => Matrix::Dense(w.clone()),
            Weight::Float(w) => Matrix::Ternary(WeightQuantizer::absmean().quantize(e, w)?),
        })
    }

    /// Adds factor·x·Aᵀ·Bᵀ to `y`, and returns what B was multiplied by.
    fn adapter_forward(
        &self,
        e: &mut Encoder,
        part: usize,
        x: &Tensor<f32>,
        y: &Tensor<f32>,
    ) -> Result<Option<Tensor<f32>>> {
        let Some((_, a, b)) = self.adapter(part) else { return Ok(None) };
        let down = tensor::matmul(x, Side::transposed(a)).forward(e)?;
        tensor::scale(&down, self.factor).forward_into(e, &down)?;
        tensor::matmul(&down, Side::transposed(b)).forward_into(e, Out::add(y))?;
        Ok(Some(down))
    }

    /// Adds the gradients of what learns, and returns that of the input. They go straight through
    /// the quantizers, as if these had been the identity.
    pub fn linear_backward(
        &self,
        e: &mut Encoder,
        parts: &[usize],
        saved: &LinearSaved,
        dy: &[Tensor<f32>],
        gradients: &[Tensor<f32>],
    ) -> Result<Tensor<f32>> {
        let LinearSaved { x, matrices, down } = saved;
        let dx = Tensor::uninit(&self.context, x.shape())?;
        for (i, ((&part, w), dy)) in parts.iter().zip(matrices).zip(dy).enumerate() {
            let out = if i == 0 { Out::set(&dx) } else { Out::add(&dx) };
            match w {
                Matrix::Ternary(w) => BitLinear::new(w).backward_into(e, dy, out)?,
                Matrix::Dense(w) => tensor::matmul(dy, w).forward_into(e, out)?,
            }
            if let Some(gradient) = self.gradient(gradients, part) {
                tensor::matmul(Side::transposed(dy), x).forward_into(e, Out::add(gradient))?;
            }
            if let (Some((at, a, b)), Some(down)) = (self.adapter(part), &down[i]) {
                let db = Out::add(&gradients[at + 1]);
                tensor::matmul(Side::transposed(dy), down).forward_into(e, db)?;
                let ddown = tensor::matmul(dy, b).forward(e)?;
                tensor::scale(&ddown, self.factor).forward_into(e, &ddown)?;
                let da = Out::add(&gradients[at]);
                tensor::matmul(Side::transposed(&ddown), x).forward_into(e, da)?;
                tensor::matmul(&ddown, a).forward_into(e, Out::add(&dx))?;
            }
        }
        Ok(dx)
    }
}
