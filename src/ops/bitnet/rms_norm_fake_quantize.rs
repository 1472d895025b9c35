//! RMSNorm and [`fake_quantize_activations`](super::fake_quantize_activations()) in one dispatch.

use super::{
    fake_quantize_activations::{check_lambda, warmed},
    rms_norm_quantize::rms_norm_quantize_cpu,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{CELLS, EXACT, REDUCE, Source, Work},
    },
    msl,
    ops::rms::inverse_rms,
    params, wgsl,
};

params! { struct Params { tokens: u32, features: u32, add: u32, eps: f32, lambda: f32 } }

static RMS_NORM_FAKE_QUANTIZE: Kernel = Kernel::trusted(
    "rms_norm_fake_quantize",
    Params::FIELDS,
    &[read("x", Float("X")), read("gain", F32), read_write("y", Float("X"))],
    &[
        Source::wgsl(wgsl![
            REDUCE,
            CELLS,
            EXACT,
            "bitnet/absmax_scale",
            "shared/row_of_group",
            "shared/row",
            "shared/row_any",
            "shared/row_numbers",
            "shared/rms",
            "shared/gain_any",
            "shared/rms_row",
            "shared/flat",
            "bitnet/fake_quantize",
            "bitnet/rms_norm_fake_quantize"
        ])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("HELD", 3)])
        .workgroup_bytes(1056)
        .work(Work::new(1, "elements", 8, 5)),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "bitnet/absmax_scale",
            "shared/reduce",
            "shared/rms",
            "shared/rms_row",
            "bitnet/fake_quantize",
            "bitnet/rms_norm_fake_quantize"
        ])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(256)
        .work(Work::new(1, "elements", 8, 5)),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&RMS_NORM_FAKE_QUANTIZE];

/// [`fake_quantize_activations`](super::fake_quantize_activations()), with its λ, of n = x /
/// sqrt(mean(x²) + eps) · gain, for every row of `x` `[.., k]`; `gain` is `[k]`. For λ = 1 it is
/// what `rms_norm_quantize` makes, dequantised, to the bit.
///
/// Straight through the rounding, its gradients are those of the norm:
/// [`RmsNorm::backward`](crate::transformer::RmsNorm::backward) of `x`, `gain` and
/// `dy`, whatever λ.
///
/// # Errors
/// As [`rms_norm_fake_quantize_into`].
pub fn rms_norm_fake_quantize<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
    lambda: f32,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    rms_norm_fake_quantize_into(encoder, x, gain, eps, lambda, &y)?;
    Ok(y)
}

/// [`rms_norm_fake_quantize`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if `gain` is not `[k]`, or the output has another shape than `x`;
/// [`Error::Invalid`] unless 0 <= λ <= 1.
pub fn rms_norm_fake_quantize_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
    lambda: f32,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    let (op, y) = ("rms_norm_fake_quantize", y.into());
    let (tokens, features) = x.shape().as_matrix();
    check_lambda(op, lambda)?;
    if gain.shape().dims() != [features] {
        return Err(Error::Shape {
            op,
            what: "gain",
            expected: format!("[{features}]"),
            found: gain.shape(),
        });
    }
    y.check_shape(op, x.shape())?;
    let params = Params {
        tokens: tokens as u32,
        features: features as u32,
        add: y.adds().into(),
        eps,
        lambda,
    };
    encoder.dispatch(&RMS_NORM_FAKE_QUANTIZE, &params, &[x, gain, y.tensor()], [tokens, 1, 1])
}

/// The CPU twin: for λ = 1 the same bits. `x` is `[tokens, gain.len()]`.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows; [`Error::Invalid`] unless 0 <= λ <= 1.
pub fn rms_norm_fake_quantize_cpu<T: Float>(
    x: &[T],
    tokens: usize,
    gain: &[f32],
    eps: f32,
    lambda: f32,
) -> Result<Vec<f32>> {
    check_lambda("rms_norm_fake_quantize", lambda)?;
    let rounded = rms_norm_quantize_cpu(x, tokens, gain, eps)?.dequantize();
    let normed = x.chunks(gain.len().max(1)).flat_map(|row| {
        let row: Vec<f32> = row.iter().map(|&v| v.into()).collect();
        let inverse = inverse_rms(&row, eps);
        row.into_iter().zip(gain).map(move |(v, gain)| v * inverse * gain)
    });
    Ok(normed.zip(rounded).map(|(n, rounded)| warmed(n, rounded, lambda)).collect())
}
