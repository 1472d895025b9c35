//! BitLinear as a layer: weights and options, which activations are given to.

use super::{
    activations::{Layout, QuantizedActivations},
    bitlinear::{bitlinear_quantized_with_into, bitlinear_with_into},
    bitlinear_block_float::bitlinear_block_float_into,
    bitlinear_float::{bitlinear_backward_into, bitlinear_float_with_into},
    bitlinear_int::{bitlinear_int_backward_into, bitlinear_int_with_into},
    bitlinear_int_quantized::bitlinear_int_quantized_with_into,
    gate::{self, Gate},
    gate_quantize::Norm,
    norm_bitlinear::{norm_bitlinear_gated_into, norm_bitlinear_into},
    norm_bitlinear_block_float::{
        norm_bitlinear_block_float_gated_into, norm_bitlinear_block_float_into,
    },
    quantize_activations::quantize_activations_into,
    quantize_block_float::BlockFloatActivations,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    ops::tensor::epilogue::{Activation, Epilogue},
    shape::Shape,
    weights::{int::matrix::IntMatrix, ternary::matrix::TernaryMatrix},
};
use half::f16;
use std::any::Any;

const OP: &str = "bitlinear";

/// Weights of a [`BitLinear`] layer, `[n, k]`. Sealed: implemented by the types below.
pub trait LinearWeights: sealed::LinearWeights {}

/// -1, 0 and 1, with scales.
impl LinearWeights for TernaryMatrix {}
/// Codes of 1 to 8 bits, with scales and zero points per group.
impl LinearWeights for IntMatrix {}

/// Input of a [`BitLinear`] layer, `[.., k]`. Sealed: implemented by the types below.
pub trait Activations: sealed::Activations {}

/// `f32` or `f16`, which the layer converts as [`ActivationType`] says.
impl<T: Float> Activations for Tensor<T> {}
/// Int8 codes with a scale per token.
impl Activations for QuantizedActivations {}
/// Block floating point.
impl Activations for BlockFloatActivations {}

#[derive(Clone, Copy)]
pub enum Weights<'a> {
    Ternary(&'a TernaryMatrix),
    Int(&'a IntMatrix),
}

#[derive(Clone, Copy)]
pub enum Input<'x> {
    F32(&'x Tensor<f32>),
    F16(&'x Tensor<f16>),
    Int8(&'x QuantizedActivations),
    BlockFloat(&'x BlockFloatActivations),
}

mod sealed {
    use super::*;

    pub trait LinearWeights {
        fn weights(&self) -> Weights<'_>;
    }

    impl LinearWeights for TernaryMatrix {
        fn weights(&self) -> Weights<'_> {
            Weights::Ternary(self)
        }
    }

    impl LinearWeights for IntMatrix {
        fn weights(&self) -> Weights<'_> {
            Weights::Int(self)
        }
    }

    pub trait Activations {
        fn input(&self) -> Input<'_>;
    }

    impl<T: Float> Activations for Tensor<T> {
        fn input(&self) -> Input<'_> {
            let any: &dyn Any = self;
            match any.downcast_ref() {
                Some(x) => Input::F32(x),
                None => Input::F16(any.downcast_ref().expect("a float is f32 or f16")),
            }
        }
    }

    impl Activations for QuantizedActivations {
        fn input(&self) -> Input<'_> {
            Input::Int8(self)
        }
    }

    impl Activations for BlockFloatActivations {
        fn input(&self) -> Input<'_> {
            Input::BlockFloat(self)
        }
    }
}

impl Input<'_> {
    /// Returns the shape of the result for `n` output features.
    fn output(&self, n: usize) -> Shape {
        match self {
            Self::F32(x) => x.shape().with_last(n),
            Self::F16(x) => x.shape().with_last(n),
            Self::Int8(x) => [x.tokens(), n].into(),
            Self::BlockFloat(x) => [x.tokens(), n].into(),
        }
    }
}

/// Arithmetic of a [`BitLinear`] layer whose input is floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActivationType {
    /// Quantized to int8 per token (W1.58A8). Integer sums: bit-identical on all devices.
    Int8,
    /// Converted to block floating point (W1.58A16): 17 bits with an exponent per block of
    /// columns. Bit-identical on all devices.
    BlockFloat,
    /// Multiplied as they are, with sums in `f32`. Slower than the others.
    Float,
}

/// A linear layer with quantized weights `[n, k]`:
/// y = activation(norm(x)·Wᵀ + bias), then optionally a gate. `x` is `[.., k]`, `y` `[.., n]`.
///
/// Ma et al. 2024, *The Era of 1-bit LLMs* (arXiv:2402.17764). By default, floats are quantized to
/// int8 per token for ternary weights, and multiplied as they are for [`IntMatrix`]; see
/// [`activation_type`](Self::activation_type). Where one kernel does several of these steps it is
/// used: the bits are those of the steps one after another.
///
/// Gradients are straight-through: the quantizers count as the identity.
///
/// ```no_run
/// # use bitnet_wgpu::{Context, Out, Result, Tensor, weights::TernaryMatrix};
/// # use bitnet_wgpu::{bitnet::BitLinear, tensor::Activation};
/// # fn f(context: &Context, w: &TernaryMatrix, x: &Tensor<f32>, b: &Tensor<f32>) -> Result<()> {
/// let layer = BitLinear::new(w).bias(b).activation(Activation::Silu);
/// let mut encoder = context.encoder("layer");
/// let y = layer.forward(&mut encoder, x)?;
/// layer.forward_into(&mut encoder, x, Out::add(&y))?; // added to y
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer does nothing until `forward` or `backward` records it"]
#[derive(Clone, Copy)]
pub struct BitLinear<'a, T = f32> {
    weights: Weights<'a>,
    activation_type: ActivationType,
    norm: Norm<'a, Tensor<f32>>,
    bias: Option<&'a Tensor<T>>,
    activation: Option<Activation>,
    gate: Option<Gate>,
}

impl<'a> BitLinear<'a> {
    /// Returns a layer without bias, activation, norm or gate, whose output is `f32`.
    pub fn new(weights: &'a (impl LinearWeights + ?Sized)) -> Self {
        let weights = weights.weights();
        let activation_type = match weights {
            Weights::Ternary(_) => ActivationType::Int8,
            Weights::Int(_) => ActivationType::Float,
        };
        Self { weights, activation_type, norm: None, bias: None, activation: None, gate: None }
    }
}

impl<'a, T: Float> BitLinear<'a, T> {
    /// Sets the element type of what [`forward`](Self::forward) returns, and of the bias: `f32` or
    /// `f16`.
    pub fn output_type<U: Float>(self) -> BitLinear<'a, U> {
        let Self { weights, activation_type, norm, activation, gate, .. } = self;
        BitLinear { weights, activation_type, norm, bias: None, activation, gate }
    }

    /// Sets the arithmetic for inputs in floats.
    pub fn activation_type(self, activation_type: ActivationType) -> Self {
        Self { activation_type, ..self }
    }

    /// Adds `bias`, `[n]`, to the product. Its type is that of the output, and of an input in
    /// floats that is not quantized.
    pub fn bias<U: Float>(self, bias: impl Into<Option<&'a Tensor<U>>>) -> BitLinear<'a, U> {
        BitLinear { bias: bias.into(), ..self.output_type() }
    }

    /// Applies `activation` after the bias.
    pub fn activation(self, activation: impl Into<Option<Activation>>) -> Self {
        Self { activation: activation.into(), ..self }
    }

    /// Normalizes each token of the input by RMSNorm, with a gain `[k]` and eps, before it is
    /// quantized. For input in `f32`.
    pub fn norm(self, gain_and_eps: impl Into<Option<(&'a Tensor<f32>, f32)>>) -> Self {
        Self { norm: gain_and_eps.into(), ..self }
    }

    /// Takes the product `[.., n]` for n/2 gates followed by n/2 ups, and returns act(gate)·up,
    /// `[.., n/2]`.
    pub fn gate(self, gate: impl Into<Option<Gate>>) -> Self {
        Self { gate: gate.into(), ..self }
    }

    /// Records the layer and returns its result, a new tensor.
    ///
    /// # Errors
    /// [`Error::Shape`] if input, weights, bias or gain do not fit; [`Error::Invalid`] for a
    /// combination that is not supported, or more input features than an exact sum allows
    /// (131,071).
    pub fn forward(
        &self,
        encoder: &mut Encoder,
        x: &(impl Activations + ?Sized),
    ) -> Result<Tensor<T>> {
        let y = Tensor::uninit(encoder.context(), x.input().output(self.outputs()))?;
        self.forward_into(encoder, x, &y)?;
        Ok(y)
    }

    /// Records the layer, which writes its result to a tensor of the caller, or adds it to one
    /// ([`Out::add`]): a residual connection.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if the tensor does not fit.
    pub fn forward_into<'y, Y: Float>(
        &self,
        encoder: &mut Encoder,
        x: &(impl Activations + ?Sized),
        out: impl Into<Out<'y, Y>>,
    ) -> Result<()> {
        let (x, out) = (x.input(), out.into());
        // Some combinations take several dispatches: all of them are recorded, or none.
        encoder.transaction(|encoder| match self.gate {
            None => self.product_into(encoder, x, out),
            Some(gate) => self.gated_into(encoder, x, gate, out),
        })
    }

    /// Records the gradient of the layer and returns that of its input, dx = dz·W, where `dz` is
    /// the gradient of the product (before bias, activation and gate), `[.., n]`. (That of the
    /// weights is the product of dz transposed and x.)
    ///
    /// # Errors
    /// [`Error::Shape`] if `dz` does not fit the weights.
    #[cfg(feature = "train")]
    pub fn backward<D: Float>(&self, encoder: &mut Encoder, dz: &Tensor<D>) -> Result<Tensor<D>> {
        let dx = Tensor::uninit(encoder.context(), dz.shape().with_last(self.inputs()))?;
        self.backward_into(encoder, dz, &dx)?;
        Ok(dx)
    }

    /// Like [`backward`](Self::backward), into a tensor of the caller.
    ///
    /// # Errors
    /// [`Error::Shape`] if `dz` or the tensor does not fit the weights.
    #[cfg(feature = "train")]
    pub fn backward_into<'y, D: Float, Y: Float>(
        &self,
        encoder: &mut Encoder,
        dz: &Tensor<D>,
        dx: impl Into<Out<'y, Y>>,
    ) -> Result<()> {
        match self.weights {
            Weights::Ternary(w) => bitlinear_backward_into(encoder, dz, w, dx),
            Weights::Int(w) => bitlinear_int_backward_into(encoder, dz, w, dx),
        }
    }

    fn inputs(&self) -> usize {
        match self.weights {
            Weights::Ternary(w) => w.columns(),
            Weights::Int(w) => w.columns(),
        }
    }

    fn rows(&self) -> usize {
        match self.weights {
            Weights::Ternary(w) => w.rows(),
            Weights::Int(w) => w.rows(),
        }
    }

    fn outputs(&self) -> usize {
        if self.gate.is_some() { self.rows() / 2 } else { self.rows() }
    }

    fn is_plain(&self) -> bool {
        self.bias.is_none() && self.activation.is_none()
    }

    fn epilogue<Y: Float>(&self) -> Result<Epilogue<'_, Y>> {
        let bias = self.bias.map(|bias| {
            (bias as &dyn Any)
                .downcast_ref::<Tensor<Y>>()
                .ok_or_else(|| invalid("a bias of another type"))
        });
        Ok(Epilogue::of(bias.transpose()?, self.activation))
    }

    /// The product, with bias and activation.
    fn product_into<Y: Float>(
        &self,
        encoder: &mut Encoder,
        x: Input<'_>,
        out: Out<'_, Y>,
    ) -> Result<()> {
        match (x, self.weights) {
            (Input::F32(x), Weights::Ternary(w)) => self.ternary_into(encoder, x, w, out),
            (Input::F16(x), Weights::Ternary(w)) => self.ternary_into(encoder, x, w, out),
            (Input::F32(x), Weights::Int(w)) => self.int_into(encoder, x, w, out),
            (Input::F16(x), Weights::Int(w)) => self.int_into(encoder, x, w, out),
            _ if self.norm.is_some() => Err(invalid("a norm for an input that is not floats")),
            (Input::Int8(x), Weights::Ternary(w)) => {
                bitlinear_quantized_with_into(encoder, x, w, &self.epilogue()?, out)
            }
            (Input::Int8(x), Weights::Int(w)) => {
                bitlinear_int_quantized_with_into(encoder, x, w, &self.epilogue()?, out)
            }
            (Input::BlockFloat(x), Weights::Ternary(w)) if self.is_plain() => {
                bitlinear_block_float_into(encoder, x, w, out)
            }
            (Input::BlockFloat(x), Weights::Ternary(w)) => {
                let products = encoder.scratch::<f32>(2, [x.tokens(), w.rows()])?;
                bitlinear_block_float_into(encoder, x, w, &products)?;
                self.epilogue()?.record(encoder, &products, out)
            }
            (Input::BlockFloat(_), Weights::Int(_)) => {
                Err(invalid("block floating point with an IntMatrix"))
            }
        }
    }

    fn ternary_into<X: Float, Y: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<X>,
        w: &TernaryMatrix,
        out: Out<'_, Y>,
    ) -> Result<()> {
        let plain_f32 = self.is_plain().then(|| f32s(x, out)).flatten();
        match (self.activation_type, plain_f32) {
            (ActivationType::Int8, Some((x, out))) => {
                norm_bitlinear_into(encoder, x, self.norm, w, out)
            }
            (ActivationType::BlockFloat, Some((x, out))) => {
                norm_bitlinear_block_float_into(encoder, x, self.norm, w, out)
            }
            _ if self.norm.is_some() => {
                Err(invalid("a norm for input or output that is not f32, or with a bias"))
            }
            (ActivationType::Int8, None) => {
                bitlinear_with_into(encoder, x, w, &self.epilogue()?, out)
            }
            (ActivationType::BlockFloat, None) => {
                Err(invalid("block floating point with f16, a bias or an activation"))
            }
            (ActivationType::Float, _) => {
                bitlinear_float_with_into(encoder, x, w, &self.epilogue()?, out)
            }
        }
    }

    fn int_into<X: Float, Y: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<X>,
        w: &IntMatrix,
        out: Out<'_, Y>,
    ) -> Result<()> {
        if self.norm.is_some() {
            return Err(invalid("a norm with an IntMatrix"));
        }
        match self.activation_type {
            ActivationType::Float => bitlinear_int_with_into(encoder, x, w, &self.epilogue()?, out),
            ActivationType::Int8 => {
                let (m, k) = x.shape().as_matrix();
                let xq = QuantizedActivations::uninit(encoder.context(), m, k, Layout::Int8)?;
                quantize_activations_into(encoder, x, &xq)?;
                bitlinear_int_quantized_with_into(encoder, &xq, w, &self.epilogue()?, out)
            }
            ActivationType::BlockFloat => Err(invalid("block floating point with an IntMatrix")),
        }
    }

    fn gated_into<Y: Float>(
        &self,
        encoder: &mut Encoder,
        x: Input<'_>,
        gate: Gate,
        out: Out<'_, Y>,
    ) -> Result<()> {
        if let (Input::F32(x), Weights::Ternary(w), true) =
            (x, self.weights, self.is_plain() && !out.adds())
            && let Some((x, out)) = f32s(x, out)
        {
            match self.activation_type {
                ActivationType::Int8 => {
                    return norm_bitlinear_gated_into(encoder, x, self.norm, w, gate, out.tensor());
                }
                ActivationType::BlockFloat => {
                    return norm_bitlinear_block_float_gated_into(
                        encoder,
                        x,
                        self.norm,
                        w,
                        gate,
                        out.tensor(),
                    );
                }
                ActivationType::Float => {}
            }
        }
        if !self.rows().is_multiple_of(2) {
            return Err(invalid("a gate with an odd number of output features"));
        }
        let products = Tensor::<T>::uninit(encoder.context(), x.output(self.rows()))?;
        self.product_into(encoder, x, Out::set(&products))?;
        gate::gate(&products, gate).output_type().forward_into(encoder, out)
    }
}

/// Returns both tensors, if both are of `f32`.
fn f32s<'x, 'y, X: Float, Y: Float>(
    x: &'x Tensor<X>,
    out: Out<'y, Y>,
) -> Option<(&'x Tensor<f32>, Out<'y, f32>)> {
    let x = (x as &dyn Any).downcast_ref::<Tensor<f32>>()?;
    let y = (out.tensor() as &'y dyn Any).downcast_ref::<Tensor<f32>>()?;
    Some((x, if out.adds() { Out::add(y) } else { Out::set(y) }))
}

fn invalid(what: &str) -> Error {
    Error::Invalid { op: OP, what: format!("{what} is not supported") }
}
