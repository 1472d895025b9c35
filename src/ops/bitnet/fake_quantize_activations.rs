//! fake_quantize_activations: what BitLinear computes with, as floats, so that a float matrix
//! product trains on it. Rounding has no slope: its gradient is taken for that of the identity (the
//! straight-through estimator, Bengio et al. 2013, arXiv:1308.3432). "Fake quantisation": Jacob et
//! al. 2018, arXiv:1712.05877.

use super::{quantize_activations::quantize_activations_cpu, row_quantizer::shared_rows};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        source::Work,
    },
    ops::reduce::{lanes, rows_extent},
    params,
};

params! { struct Params { rows: u32, columns: u32, lanes: u32, add: u32, lambda: f32 } }

static FAKE_QUANTIZE_ACTIVATIONS: Kernel = shared_rows!(
    "fake_quantize_activations",
    Params,
    &[read("x", Float("X")), read_write("y", Float("X"))],
    1,
    Work::new(1, "elements", 8, 5),
    [
        "bitnet/absmax_scale",
        "bitnet/fake_quantize",
        "shared/magnitude",
        "shared/lanes",
        "bitnet/fake_quantize_activations",
    ]
);

pub(super) const KERNELS: &[&Kernel] = &[&FAKE_QUANTIZE_ACTIVATIONS];

/// y = x + λ·(x̃ - x) of every row of `x` `[.., k]`, where x̃ = clamp(round(x·a), -128, 127) / a
/// with a = 127 / max(max|x|, 1e-5), ties to even. For λ = 1, y is x̃: the bits of
/// [`QuantizedActivations::dequantize`](super::QuantizedActivations::dequantize) after
/// [`ActivationQuantizer::int8`](super::ActivationQuantizer::int8). Less eases training into the
/// quantizer: a λ that rises from 0 to 1 over the first steps.
///
/// Its gradient straight through the rounding is `dy`, whatever λ: absmax clips nothing, so there
/// is no mask. A row that holds a NaN or an infinity is NaN.
///
/// # Errors
/// As [`fake_quantize_activations_into`].
pub fn fake_quantize_activations<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    lambda: f32,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    fake_quantize_activations_into(encoder, x, lambda, &y)?;
    Ok(y)
}

/// [`fake_quantize_activations`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if it has another shape; [`Error::Invalid`] unless 0 <= λ <= 1.
pub fn fake_quantize_activations_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    lambda: f32,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    let (op, y) = ("fake_quantize_activations", y.into());
    check_lambda(op, lambda)?;
    y.check_shape(op, x.shape())?;
    let (rows, columns) = x.shape().as_matrix();
    let params = Params {
        rows: rows as u32,
        columns: columns as u32,
        lanes: lanes(columns) as u32,
        add: y.adds().into(),
        lambda,
    };
    encoder.dispatch(
        &FAKE_QUANTIZE_ACTIVATIONS,
        &params,
        &[x, y.tensor()],
        rows_extent(rows, columns),
    )
}

pub(super) fn check_lambda(op: &'static str, lambda: f32) -> Result<()> {
    if (0.0..=1.0).contains(&lambda) {
        return Ok(());
    }
    Err(Error::Invalid { op, what: format!("a λ of {lambda}: it is from 0 to 1") })
}

/// x + λ·(x̃ - x), and just x̃ where λ is 1.
pub(super) fn warmed(x: f32, rounded: f32, lambda: f32) -> f32 {
    if lambda == 1.0 { rounded } else { x + lambda * (rounded - x) }
}

/// The CPU twin: for λ = 1 the same bits. `x` is `[tokens, features]`.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows; [`Error::Invalid`] unless 0 <= λ <= 1.
pub fn fake_quantize_activations_cpu<T: Float>(
    x: &[T],
    tokens: usize,
    features: usize,
    lambda: f32,
) -> Result<Vec<f32>> {
    check_lambda("fake_quantize_activations", lambda)?;
    let rounded = quantize_activations_cpu(x, tokens, features)?.dequantize();
    Ok(x.iter().zip(rounded).map(|(&x, rounded)| warmed(x.into(), rounded, lambda)).collect())
}
