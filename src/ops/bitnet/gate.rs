//! The gates of feed-forward blocks, y = relu(gate)²·up (BitNet's), y = silu(gate)·up (SwiGLU,
//! Shazeer 2020, arXiv:2002.05202) and y = gelu(gate)·up (GEGLU, by GELU's approximation), and
//! their gradients: of a gate dy·up·f'(gate), of an up dy·f(gate).

use super::gate_quantize::Gate;
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
    ops::tensor::activations::reference,
    params, wgsl,
};

params! { struct Params { length: u32, features: u32, add: u32 } }
params! { struct BackwardParams { length: u32, features: u32 } }

const fn forward(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] = &[read("x", Float("X")), read_write("y", Float("Y"))];
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry("gated").flat()
}

const fn backward(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] =
        &[read("x", Float("X")), read("dy", Float("X")), read_write("dx", Float("X"))];
    Kernel::trusted(name, BackwardParams::FIELDS, BINDINGS, sources).entry("gated_backward").flat()
}

static RELU2_GATE: Kernel = forward(
    "relu2_gate",
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "tensor/relu2",
        "bitnet/gate",
        "bitnet/gated"
    ])],
);
static RELU2_GATE_BACKWARD: Kernel = backward(
    "relu2_gate_backward",
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/relu2", "bitnet/gated_backward"])],
);
static SILU_GATE: Kernel = forward(
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
static SILU_GATE_BACKWARD: Kernel = backward(
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

static GELU_TANH_GATE: Kernel = forward(
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
static GELU_TANH_GATE_BACKWARD: Kernel = backward(
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

/// relu(gate)²·up: `x` `[tokens, 2·features]` holds gate, then up, in every row; gives
/// `[tokens, features]`, in `f32` since relu² overflows `f16`.
///
/// # Errors
/// [`Error::Shape`] for an odd number of columns.
pub fn relu2_gate<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<f32>> {
    allocated(encoder, &RELU2_GATE, x)
}

/// [`relu2_gate`] into a tensor of the caller, `[tokens, features]`.
///
/// # Errors
/// As [`relu2_gate`]; [`Error::Shape`] if the output does not fit.
pub fn relu2_gate_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    gate(encoder, &RELU2_GATE, x, y.into())
}

/// The gradient of [`relu2_gate`] at `x`, where `dy` is that of its output: gates, then ups, as `x`
/// has them.
///
/// # Errors
/// [`Error::Shape`] if `dy` does not fit `x`.
pub fn relu2_gate_backward<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    dy: &Tensor<T>,
) -> Result<Tensor<T>> {
    gradient(encoder, &RELU2_GATE_BACKWARD, x, dy)
}

/// silu(gate)·up; else as [`relu2_gate`].
///
/// # Errors
/// [`Error::Shape`] for an odd number of columns.
pub fn silu_gate<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<f32>> {
    allocated(encoder, &SILU_GATE, x)
}

/// [`silu_gate`] into a tensor of the caller, `[tokens, features]`.
///
/// # Errors
/// As [`silu_gate`]; [`Error::Shape`] if the output does not fit.
pub fn silu_gate_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    gate(encoder, &SILU_GATE, x, y.into())
}

/// The gradient of [`silu_gate`]; else as [`relu2_gate_backward`].
///
/// # Errors
/// [`Error::Shape`] if `dy` does not fit `x`.
pub fn silu_gate_backward<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    dy: &Tensor<T>,
) -> Result<Tensor<T>> {
    gradient(encoder, &SILU_GATE_BACKWARD, x, dy)
}

/// gelu(gate)·up, as [`gelu_tanh`](crate::tensor::gelu_tanh) approximates it; else as
/// [`relu2_gate`].
///
/// # Errors
/// [`Error::Shape`] for an odd number of columns.
pub fn gelu_tanh_gate<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<f32>> {
    allocated(encoder, &GELU_TANH_GATE, x)
}

/// [`gelu_tanh_gate`] into a tensor of the caller, `[tokens, features]`.
///
/// # Errors
/// As [`gelu_tanh_gate`]; [`Error::Shape`] if the output does not fit.
pub fn gelu_tanh_gate_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    gate(encoder, &GELU_TANH_GATE, x, y.into())
}

/// The gradient of [`gelu_tanh_gate`]; else as [`relu2_gate_backward`].
///
/// # Errors
/// [`Error::Shape`] if `dy` does not fit `x`.
pub fn gelu_tanh_gate_backward<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    dy: &Tensor<T>,
) -> Result<Tensor<T>> {
    gradient(encoder, &GELU_TANH_GATE_BACKWARD, x, dy)
}

fn allocated<T: Float>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    x: &Tensor<T>,
) -> Result<Tensor<f32>> {
    let (tokens, columns) = x.shape().as_matrix();
    let y = Tensor::uninit(encoder.context(), [tokens, columns / 2])?;
    gate(encoder, kernel, x, (&y).into())?;
    Ok(y)
}

fn gate<X: Float, Y: Float>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    x: &Tensor<X>,
    y: Out<'_, Y>,
) -> Result<()> {
    let (tokens, features) = halves(kernel.name, x)?;
    y.check(kernel.name, tokens, features)?;
    let params =
        Params { length: y.tensor().len() as u32, features: features as u32, add: y.adds().into() };
    encoder.dispatch(kernel, &params, &[x, y.tensor()], [y.tensor().len(), 1, 1])
}

fn gradient<T: Float>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    x: &Tensor<T>,
    dy: &Tensor<T>,
) -> Result<Tensor<T>> {
    let (tokens, features) = halves(kernel.name, x)?;
    if dy.shape().as_matrix() != (tokens, features) {
        return Err(Error::Shape {
            op: kernel.name,
            what: "dy",
            expected: format!("[{tokens}, {features}]"),
            found: dy.shape(),
        });
    }
    let dx = Tensor::uninit(encoder.context(), x.shape())?;
    let params = BackwardParams { length: dy.len() as u32, features: features as u32 };
    encoder.dispatch(kernel, &params, &[x, dy, &dx], [dy.len(), 1, 1])?;
    Ok(dx)
}

/// Tokens, and the gates or ups of each.
fn halves<T: Float>(op: &'static str, x: &Tensor<T>) -> Result<(usize, usize)> {
    let (tokens, columns) = x.shape().as_matrix();
    if !columns.is_multiple_of(2) {
        return Err(Error::Shape {
            op,
            what: "x",
            expected: "[tokens, 2 · features]".to_owned(),
            found: x.shape(),
        });
    }
    Ok((tokens, columns / 2))
}

/// The CPU twin of [`relu2_gate`]: the same bits, where nothing is subnormal. Rows of `x` hold
/// `features` gates, then as many ups.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn relu2_gate_cpu<T: Float>(x: &[T], features: usize) -> Result<Vec<f32>> {
    gated_cpu(x, features, reference::relu2)
}

/// The CPU twin of [`silu_gate`]; else as [`relu2_gate_cpu`].
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn silu_gate_cpu<T: Float>(x: &[T], features: usize) -> Result<Vec<f32>> {
    gated_cpu(x, features, reference::silu)
}

/// The CPU twin of [`gelu_tanh_gate`]; else as [`relu2_gate_cpu`].
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn gelu_tanh_gate_cpu<T: Float>(x: &[T], features: usize) -> Result<Vec<f32>> {
    gated_cpu(x, features, reference::gelu_tanh)
}

/// [`relu2_gate_into`], [`silu_gate_into`] or [`gelu_tanh_gate_into`].
///
/// # Errors
/// As these.
pub(crate) fn gate_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    kind: Gate,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    match kind {
        Gate::Relu2 => relu2_gate_into(encoder, x, y),
        Gate::Silu => silu_gate_into(encoder, x, y),
        Gate::GeluTanh => gelu_tanh_gate_into(encoder, x, y),
    }
}

/// [`relu2_gate_cpu`], [`silu_gate_cpu`] or [`gelu_tanh_gate_cpu`].
///
/// # Errors
/// As these.
pub(crate) fn gate_cpu<T: Float>(x: &[T], features: usize, kind: Gate) -> Result<Vec<f32>> {
    match kind {
        Gate::Relu2 => relu2_gate_cpu(x, features),
        Gate::Silu => silu_gate_cpu(x, features),
        Gate::GeluTanh => gelu_tanh_gate_cpu(x, features),
    }
}

fn gated_cpu<T: Float>(x: &[T], features: usize, function: fn(f32) -> f32) -> Result<Vec<f32>> {
    let columns = features.saturating_mul(2);
    if !x.len().is_multiple_of(columns.max(1)) || (columns == 0 && !x.is_empty()) {
        return Err(Error::Length {
            shape: [x.len() / columns.max(1), columns].into(),
            found: x.len(),
        });
    }
    let rows = x.chunks_exact(columns.max(1)).map(|row| row.split_at(features));
    let gated = |(gate, up): (&T, &T)| function((*gate).into()) * (*up).into();
    Ok(rows.flat_map(|(gate, up)| gate.iter().zip(up).map(gated)).collect())
}

/// The CPU twin of [`relu2_gate_backward`], of one gate and up: their gradients.
pub fn relu2_gate_backward_cpu(gate: f32, up: f32, dy: f32) -> (f32, f32) {
    (reference::relu2_backward(gate, dy * up), dy * reference::relu2(gate))
}

/// The CPU twin of [`silu_gate_backward`], of one gate and up.
pub fn silu_gate_backward_cpu(gate: f32, up: f32, dy: f32) -> (f32, f32) {
    (reference::silu_backward(gate, dy * up), dy * reference::silu(gate))
}

/// The CPU twin of [`gelu_tanh_gate_backward`], of one gate and up.
pub fn gelu_tanh_gate_backward_cpu(gate: f32, up: f32, dy: f32) -> (f32, f32) {
    (reference::gelu_tanh_backward(gate, dy * up), dy * reference::gelu_tanh(gate))
}
