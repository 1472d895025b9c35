//! The gates of feed-forward blocks, y = relu(gate)²·up (BitNet's), y = silu(gate)·up (SwiGLU,
//! Shazeer 2020, arXiv:2002.05202) and y = gelu(gate)·up (GEGLU, by GELU's approximation), and
//! their gradients: of a gate dy·up·f'(gate), of an up dy·f(gate).

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::forward::{backward, forward},
    params,
    shape::Shape,
    wgsl,
};
use std::marker::PhantomData;

params! { struct Params { length: u32, features: u32, add: u32 } }
params! { struct BackwardParams { length: u32, features: u32 } }

const fn forward_kernel(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] = &[read("x", Float("X")), read_write("y", Float("Y"))];
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry("gated").flat()
}

const fn backward_kernel(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] =
        &[read("x", Float("X")), read("dy", Float("X")), read_write("dx", Float("X"))];
    Kernel::trusted(name, BackwardParams::FIELDS, BINDINGS, sources).entry("gated_backward").flat()
}

static RELU2_GATE: Kernel = forward_kernel(
    "relu2_gate",
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "tensor/relu2",
        "bitnet/gate",
        "bitnet/gated"
    ])],
);
static RELU2_GATE_BACKWARD: Kernel = backward_kernel(
    "relu2_gate_backward",
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/relu2", "bitnet/gated_backward"])],
);
static SILU_GATE: Kernel = forward_kernel(
    "silu_gate",
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/exp",
        "shared/sigmoid",
        "tensor/silu",
        "bitnet/gate",
        "bitnet/gated"
    ])],
);
static SILU_GATE_BACKWARD: Kernel = backward_kernel(
    "silu_gate_backward",
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/exp",
        "shared/sigmoid",
        "tensor/silu",
        "bitnet/gated_backward"
    ])],
);

static GELU_TANH_GATE: Kernel = forward_kernel(
    "gelu_tanh_gate",
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/exp",
        "shared/sigmoid",
        "tensor/gelu_tanh",
        "bitnet/gate",
        "bitnet/gated"
    ])],
);
static GELU_TANH_GATE_BACKWARD: Kernel = backward_kernel(
    "gelu_tanh_gate_backward",
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/exp",
        "shared/sigmoid",
        "tensor/gelu_tanh",
        "bitnet/gated_backward"
    ])],
);

pub(super) const KERNELS: &[&Kernel] = &[
    &RELU2_GATE,
    &RELU2_GATE_BACKWARD,
    &SILU_GATE,
    &SILU_GATE_BACKWARD,
    &GELU_TANH_GATE,
    &GELU_TANH_GATE_BACKWARD,
];

/// The activation function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gate {
    /// relu(x)²: BitNet b1.58 2B4T.
    Relu2,
    /// x / (1 + e^-x): Llama.
    Silu,
    /// x·σ(2u) with u = √(2/π)·(x + 0.044715·x³), GELU's approximation by tanh: Gemma.
    GeluTanh,
}

impl Gate {
    /// The kernels of the gate and of its gradient.
    fn kernels(self) -> [&'static Kernel; 2] {
        match self {
            Self::Relu2 => [&RELU2_GATE, &RELU2_GATE_BACKWARD],
            Self::Silu => [&SILU_GATE, &SILU_GATE_BACKWARD],
            Self::GeluTanh => [&GELU_TANH_GATE, &GELU_TANH_GATE_BACKWARD],
        }
    }
}

/// A gate of a feed-forward block: what [`gate`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Gated<'a, X, Y = f32> {
    x: &'a Tensor<X>,
    gate: Gate,
    output: PhantomData<Y>,
}

/// act(gate)·up of every row: `x` `[tokens, 2·features]` holds gates, then as many ups. The result
/// is `[tokens, features]`, in `f32` since relu² overflows `f16`.
///
/// The gradient has the layout of `x`: that of the gates, dy·up·act'(gate), then that of the ups,
/// dy·act(gate). It cannot be added to a tensor.
pub fn gate<X: Float>(x: &Tensor<X>, gate: Gate) -> Gated<'_, X> {
    Gated { x, gate, output: PhantomData }
}

forward!(impl['a, X: Float, Y: Float] Gated<'a, X, Y> => Y);
backward!(impl['a, X: Float, Y: Float] Gated<'a, X, Y> => X; dy: X);

impl<'a, X: Float, Y: Float> Gated<'a, X, Y> {
    /// Sets the element type of the result: `f32` or `f16`.
    pub fn output_type<Z: Float>(self) -> Gated<'a, X, Z> {
        Gated { x: self.x, gate: self.gate, output: PhantomData }
    }

    fn shape(&self) -> Result<Shape> {
        let (tokens, columns) = self.x.shape().as_matrix();
        if !columns.is_multiple_of(2) {
            return Err(Error::Shape {
                op: self.gate.kernels()[0].name,
                what: "x",
                expected: "[tokens, 2 · features]".to_owned(),
                found: self.x.shape(),
            });
        }
        Ok([tokens, columns / 2].into())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, Y>) -> Result<()> {
        let ([kernel, _], (tokens, features)) = (self.gate.kernels(), self.shape()?.as_matrix());
        y.check(kernel.name, tokens, features)?;
        let (length, y, add) = (y.tensor().len(), y.tensor(), y.adds().into());
        let params = Params { length: length as u32, features: features as u32, add };
        encoder.dispatch(kernel, &params, &[self.x, y], [length, 1, 1])
    }

    fn gradient(self, encoder: &mut Encoder, dy: &Tensor<X>, dx: Out<'_, X>) -> Result<()> {
        let ([_, kernel], shape) = (self.gate.kernels(), self.shape()?);
        let (tokens, features) = shape.as_matrix();
        if dy.shape().as_matrix() != (tokens, features) {
            let expected = shape.to_string();
            return Err(Error::Shape { op: kernel.name, what: "dy", expected, found: dy.shape() });
        }
        dx.check_shape(kernel.name, self.x.shape())?;
        if dx.adds() {
            let what = "Out::add for the gradient of a gate; it accepts Out::set".to_owned();
            return Err(Error::Invalid { op: kernel.name, what });
        }
        let params = BackwardParams { length: dy.len() as u32, features: features as u32 };
        encoder.dispatch(kernel, &params, &[self.x, dy, dx.tensor()], [dy.len(), 1, 1])
    }
}

pub(crate) mod host {
    use super::*;
    use crate::ops::tensor::activations::host;

    /// CPU reference of [`gate`](fn@crate::bitnet::gate): bit-identical with [`Gate::Relu2`] where
    /// nothing is subnormal. Rows of `x` hold `features` gates, then as many ups.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn gate<T: Float>(x: &[T], features: usize, gate: Gate) -> Result<Vec<f32>> {
        let columns = features.saturating_mul(2);
        if !x.len().is_multiple_of(columns.max(1)) || (columns == 0 && !x.is_empty()) {
            return Err(Error::Length {
                shape: [x.len() / columns.max(1), columns].into(),
                found: x.len(),
            });
        }
        let function = match gate {
            Gate::Relu2 => host::relu2,
            Gate::Silu => host::silu,
            Gate::GeluTanh => host::gelu_tanh,
        };
        let rows = x.chunks_exact(columns.max(1)).map(|row| row.split_at(features));
        let gated = |(gate, up): (&T, &T)| function((*gate).into()) * (*up).into();
        Ok(rows.flat_map(|(gates, ups)| gates.iter().zip(ups).map(gated)).collect())
    }
}

#[cfg(all(feature = "train", any(test, feature = "reference")))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::tensor::activations::host;

    /// CPU reference of the gradient of [`gate`](fn@crate::bitnet::gate), of one gate and its up:
    /// the gradients of both.
    pub fn gate_backward(gate: f32, up: f32, dy: f32, kind: Gate) -> (f32, f32) {
        let (of_gate, activated) = match kind {
            Gate::Relu2 => (host::relu2_backward(gate, dy * up), host::relu2(gate)),
            Gate::Silu => (host::silu_backward(gate, dy * up), host::silu(gate)),
            Gate::GeluTanh => (host::gelu_tanh_backward(gate, dy * up), host::gelu_tanh(gate)),
        };
        (of_gate, dy * activated)
    }
}
