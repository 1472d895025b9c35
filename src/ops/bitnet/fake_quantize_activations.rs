//! fake_quantize_activations: what BitLinear computes with, as floats, so that a float matrix
//! product trains on it. Rounding has no slope: its gradient is taken for that of the identity (the
//! straight-through estimator, Bengio et al. 2013, arXiv:1308.3432). "Fake quantization": Jacob et
//! al. 2018, arXiv:1712.05877.

use super::{
    gate_quantize::Norm, rms_norm_fake_quantize::rms_norm_fake_quantize, row_quantizer::shared_rows,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        source::Work,
    },
    ops::{
        forward::forward,
        reduce::{lanes, rows_extent},
    },
    params,
    shape::Shape,
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

/// Activations as BitLinear takes them, in floats: what [`fake_quantize_activations`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct FakeQuantizedActivations<'a, T> {
    x: &'a Tensor<T>,
    norm: Norm<'a, Tensor<f32>>,
    lambda: f32,
}

/// x + λ·(x̃ - x) of every row of `x` `[.., k]`, where x̃ = clamp(round(x·a), -128, 127) / a with
/// a = 127 / max(max|x|, 1e-5), ties to even. For λ = 1 it is x̃, the bits of
/// [`QuantizedActivations::dequantize`](super::QuantizedActivations::dequantize) after
/// [`ActivationQuantizer::int8`](super::ActivationQuantizer::int8). A λ that rises from 0 to 1 over
/// the first steps eases training into the quantizer.
///
/// Its gradient straight through the rounding is `dy`, whatever λ: absmax clips nothing, so there
/// is no mask. After a norm, it is that of the norm:
/// [`RmsNorm::backward`](crate::transformer::RmsNorm::backward). A row that holds a NaN or an
/// infinity is NaN.
pub fn fake_quantize_activations<T: Float>(
    x: &Tensor<T>,
    lambda: f32,
) -> FakeQuantizedActivations<'_, T> {
    FakeQuantizedActivations { x, norm: None, lambda }
}

forward!(impl['a, T: Float] FakeQuantizedActivations<'a, T> => T);

impl<'a, T: Float> FakeQuantizedActivations<'a, T> {
    /// Quantizes n = x / sqrt(mean(x²) + eps) · gain in place of `x`, in the same dispatch: the
    /// gain `[k]`, and eps.
    pub fn norm(self, norm: impl Into<Norm<'a, Tensor<f32>>>) -> Self {
        Self { norm: norm.into(), ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(self.x.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        let (op, Self { x, norm, lambda }) = ("fake_quantize_activations", self);
        check_lambda(op, lambda)?;
        y.check_shape(op, x.shape())?;
        if let Some(norm) = norm {
            return rms_norm_fake_quantize(encoder, x, norm, lambda, y);
        }
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
}

pub(super) fn check_lambda(op: &'static str, lambda: f32) -> Result<()> {
    if (0.0..=1.0).contains(&lambda) {
        return Ok(());
    }
    Err(Error::Invalid { op, what: format!("a λ of {lambda}: it is from 0 to 1") })
}

/// Returns x + λ·(x̃ - x), and exactly x̃ where λ is 1.
pub(super) fn warmed(x: f32, rounded: f32, lambda: f32) -> f32 {
    if lambda == 1.0 { rounded } else { x + lambda * (rounded - x) }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::{
        bitnet::{
            quantize_activations::host::quantize_activations,
            rms_norm_quantize::host::rms_norm_quantize,
        },
        rms::inverse_rms,
    };

    /// CPU reference of [`fake_quantize_activations`](fn@crate::bitnet::fake_quantize_activations):
    /// bit-identical for λ = 1. `x` is `[tokens, features]`, the norm a gain `[features]` and eps.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows or the gain has another length;
    /// [`Error::Invalid`] unless 0 <= λ <= 1.
    pub fn fake_quantize_activations<T: Float>(
        x: &[T],
        [tokens, features]: [usize; 2],
        norm: Norm<'_, [f32]>,
        lambda: f32,
    ) -> Result<Vec<f32>> {
        check_lambda("fake_quantize_activations", lambda)?;
        let mut numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
        let quantized = match norm {
            None => quantize_activations(x, tokens, features)?,
            Some((gain, eps)) => {
                if gain.len() != features {
                    return Err(Error::Length { shape: [features].into(), found: gain.len() });
                }
                let quantized = rms_norm_quantize(x, tokens, gain, eps)?;
                for row in numbers.chunks_mut(features.max(1)) {
                    let inverse = inverse_rms(row, eps);
                    row.iter_mut().zip(gain).for_each(|(v, gain)| *v = *v * inverse * gain);
                }
                quantized
            }
        };
        let rounded = quantized.dequantize();
        Ok(numbers
            .into_iter()
            .zip(rounded)
            .map(|(x, rounded)| warmed(x, rounded, lambda))
            .collect())
    }
}
