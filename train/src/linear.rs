//! Linear layers of one input, with their adapters, and their gradients.

use crate::{
    error::Result,
    network::{Network, Value, Weight},
    settings::{LinearMode, Precision},
};
use bitnet_wgpu::{
    Encoder, Error as LibraryError, Out, Shape, Tensor,
    bitnet::{
        ActivationQuantizer, ActivationType, BitLinear, QuantizedActivations, WeightQuantizer,
    },
    tensor::{self, Side, f16},
    weights::TernaryMatrix,
};

/// The matrix of a linear layer as a step multiplied by it.
pub enum Matrix {
    Ternary(TernaryMatrix),
    /// The parameter itself.
    Dense(Tensor<f32>),
    /// Either of them, in the other precision.
    F16(Tensor<f16>),
}

impl Matrix {
    fn rounded(self, e: &mut Encoder) -> bitnet_wgpu::Result<Self> {
        Ok(match self {
            Self::Ternary(w) => Self::F16(w.dequantize(e)?),
            Self::Dense(w) => Self::F16(tensor::cast(&w).forward(e)?),
            Self::F16(_) => self,
        })
    }
}

/// What matrices are multiplied by.
pub enum Input {
    Int8(QuantizedActivations),
    F32(Tensor<f32>),
    F16(Tensor<f16>),
}

/// What linear layers multiplied, for their gradients.
pub struct LinearSaved {
    /// What the matrices were multiplied by: of int8 activations, their numbers. For weights that do
    /// not learn, the input, by which their adapters are multiplied.
    x: Input,
    shape: Shape,
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
        let mut matrices =
            parts.iter().map(|&part| self.matrix(e, part)).collect::<Result<Vec<_>>>()?;
        let is_mixed = self.precision == Precision::Mixed;
        let round = |e: &mut Encoder, matrices: Vec<Matrix>| {
            matrices.into_iter().map(|w| w.rounded(e)).collect::<bitnet_wgpu::Result<Vec<_>>>()
        };
        let x = match self.linear {
            LinearMode::Int8 => Input::Int8(ActivationQuantizer::int8().quantize(e, &input)?),
            _ if is_mixed => {
                matrices = round(e, matrices)?;
                Input::F16(tensor::cast(&input).forward(e)?)
            }
            LinearMode::Float | LinearMode::Dense => Input::F32(input.clone()),
        };
        let products: Value =
            matrices.iter().map(|w| product(e, &x, w)).collect::<bitnet_wgpu::Result<_>>()?;
        if is_mixed {
            matrices = round(e, matrices)?;
        }
        let mut down = Vec::with_capacity(parts.len());
        for (&part, y) in parts.iter().zip(&products) {
            down.push(self.adapter_forward(e, part, &input, y)?);
        }
        let (x, shape) = (self.kept(e, x, &input)?, input.shape());
        Ok((products, LinearSaved { x, shape, matrices, down }))
    }

    /// What the gradients of matrices and adapters are made of.
    fn kept(&self, e: &mut Encoder, x: Input, input: &Tensor<f32>) -> Result<Input> {
        Ok(match (x, self.precision) {
            _ if self.frozen => Input::F32(input.clone()),
            (Input::Int8(codes), Precision::F32) => Input::F32(codes.dequantize(e)?),
            (Input::Int8(codes), Precision::Mixed) => Input::F16(codes.dequantize(e)?),
            (floats, _) => floats,
        })
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
        let LinearSaved { x, shape, matrices, down } = saved;
        let dx = Tensor::uninit(&self.context, *shape)?;
        for (i, ((&part, w), dy)) in parts.iter().zip(matrices).zip(dy).enumerate() {
            let out = if i == 0 { Out::set(&dx) } else { Out::add(&dx) };
            let rounded = match self.precision {
                Precision::F32 => None,
                Precision::Mixed => Some(tensor::cast(dy).forward::<f16>(e)?),
            };
            match (w, &rounded) {
                (Matrix::F16(w), Some(dy)) => tensor::matmul(dy, w).forward_into(e, out)?,
                (Matrix::Ternary(w), _) => BitLinear::new(w).backward_into(e, dy, out)?,
                (Matrix::Dense(w), _) => tensor::matmul(dy, w).forward_into(e, out)?,
                (Matrix::F16(_), None) => return Err(mismatch().into()),
            }
            if let Some(gradient) = self.gradient(gradients, part) {
                let out = Out::add(gradient);
                match (x, &rounded) {
                    (Input::F16(x), Some(dy)) => {
                        tensor::matmul(Side::transposed(dy), x).forward_into(e, out)?;
                    }
                    (Input::F32(x), _) => {
                        tensor::matmul(Side::transposed(dy), x).forward_into(e, out)?;
                    }
                    _ => return Err(mismatch().into()),
                }
            }
            if let (Some((at, a, b)), Some(down), Input::F32(x)) = (self.adapter(part), &down[i], x)
            {
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

/// A matrix's product with every row of the input.
fn product(e: &mut Encoder, x: &Input, w: &Matrix) -> bitnet_wgpu::Result<Tensor<f32>> {
    match (x, w) {
        (Input::Int8(x), Matrix::Ternary(w)) => BitLinear::new(w).forward(e, x),
        (Input::F32(x), Matrix::Ternary(w)) => {
            BitLinear::new(w).activation_type(ActivationType::Float).forward(e, x)
        }
        (Input::F32(x), Matrix::Dense(w)) => tensor::matmul(x, Side::transposed(w)).forward(e),
        (Input::F16(x), Matrix::F16(w)) => {
            let y =
                Tensor::uninit(e.context(), [x.shape().as_matrix().0, w.shape().as_matrix().0])?;
            tensor::matmul(x, Side::transposed(w)).forward_into(e, &y)?;
            Ok(y)
        }
        _ => Err(mismatch()),
    }
}

/// Not reached: modes and precisions say which types meet.
fn mismatch() -> LibraryError {
    let what = "a matrix and its input are of different types".into();
    LibraryError::Invalid { op: "training", what }
}
