//! quantization_error: how far a tensor is from what it was quantized to.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        source::EXACT,
    },
    ops::{
        forward::forward,
        frames::Operand,
        reduce::{self, Axes, Geometry, Numbers, Reduction, THREADS, Ways, reduction},
    },
    shape::Shape,
};

/// Words of the sums between passes.
const WORDS: usize = 6;

static QUANTIZATION_ERROR: Kernel = reduce::kernel(
    "quantization_error",
    &[read("w", Float("X")), read("quantized", Float("Q")), read_write("y", U32)],
    &[reduction!(wgsl[EXACT, "bitnet/quantization_error", "bitnet/quantization_error_sums"])
        .workgroup_bytes(4 * (WORDS * THREADS) as u32)],
);
static QUANTIZATION_ERROR_MERGE: Kernel = reduce::kernel(
    "quantization_error_merge",
    &[read("parts", U32), read_write("y", U32)],
    &[reduction!(wgsl[EXACT, "bitnet/quantization_error_merge", "bitnet/quantization_error_sums"])
        .workgroup_bytes(4 * (WORDS * THREADS) as u32)],
);

pub(super) const KERNELS: &[&Kernel] = &[&QUANTIZATION_ERROR, &QUANTIZATION_ERROR_MERGE];

/// How far numbers w are from what they were quantized to, q.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantizationError {
    /// The mean of (w - q)².
    pub mean_squared: f32,
    /// The largest |w - q|.
    pub largest: f32,
    /// Σ w·q / (|w|·|q|), the cosine of the angle between both; 0 where one is all zeros.
    pub cosine: f32,
    /// The share of q that is 0, from 0 to 1.
    pub zeros: f32,
}

impl QuantizationError {
    /// Reads the result of [`quantization_error`].
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor of another shape than `[4]`; what the device reports.
    pub async fn read(error: &Tensor<f32>) -> Result<Self> {
        match error.read().await?[..] {
            [mean_squared, largest, cosine, zeros] => {
                Ok(Self { mean_squared, largest, cosine, zeros })
            }
            _ => Err(Error::Shape {
                op: "quantization_error",
                what: "the result",
                expected: "[4]".to_owned(),
                found: error.shape(),
            }),
        }
    }
}

/// Four measures of the error of a quantizer: what [`quantization_error`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct ErrorReduction<'a, X, Q> {
    w: &'a Tensor<X>,
    quantized: &'a Tensor<Q>,
}

/// Mean squared error, largest error, cosine similarity and share of zeros of `quantized` beside
/// `w`, both of one shape and `f32` or `f16`: `[4]`, which [`QuantizationError::read`] names. Both
/// are read once. `quantized` is in floats, so any quantizer can be judged: packed weights have
/// [`dequantize`](crate::weights::TernaryMatrix::dequantize). Without elements, all four are 0.
///
/// Sums are added in `f32`, in an order that follows from the shape. Squares are plain floats:
/// numbers above 2^63 give infinity, below 2^-63 nothing. One that is not finite makes the first
/// three NaN or infinite.
pub fn quantization_error<'a, X: Float, Q: Float>(
    w: &'a Tensor<X>,
    quantized: &'a Tensor<Q>,
) -> ErrorReduction<'a, X, Q> {
    ErrorReduction { w, quantized }
}

forward!(impl['a, X: Float, Q: Float] ErrorReduction<'a, X, Q> => overwrite f32);

impl<X: Float, Q: Float> ErrorReduction<'_, X, Q> {
    fn shape(&self) -> Result<Shape> {
        Ok([4].into())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let (op, Self { w, quantized }) = ("quantization_error", self);
        Operand::same(op, "quantized", quantized, w.shape())?;
        y.check_shape(op, self.shape()?)?;
        let geometry = Geometry::new(op, w.shape(), Axes::ALL)?;
        let numbers = Numbers { divisor: w.len().max(1) as f32, ..Numbers::default() };
        let reduction = Reduction {
            first: Ways::shared(&QUANTIZATION_ERROR),
            then: Ways::shared(&QUANTIZATION_ERROR_MERGE),
            words: WORDS,
        };
        // Words: counts and floats come out of the same kernel.
        let words = y.tensor().cast::<u32>();
        reduction.record(encoder, &[w, quantized], &geometry, numbers, Out::set(&words))
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`quantization_error`](fn@crate::bitnet::quantization_error): the same
    /// order, but devices may round squares and products or not.
    ///
    /// # Errors
    /// [`Error::Length`] if there are not as many of both.
    pub fn quantization_error<X: Float, Q: Float>(
        w: &[X],
        quantized: &[Q],
    ) -> Result<QuantizationError> {
        let shape = Shape::from([w.len()]);
        if quantized.len() != w.len() {
            return Err(Error::Length { shape, found: quantized.len() });
        }
        let geometry = Geometry::new("quantization_error", shape, Axes::ALL)?;
        let sums = |term: &dyn Fn(f32, f32) -> f32, combine: fn(f32, f32) -> f32| {
            geometry.reduce_cpu(0.0, |at, _, _| term(w[at].into(), quantized[at].into()), combine)
                [0]
        };
        let (add, count) = (|a, b| a + b, w.len().max(1) as f32);
        // Magnitudes order as their bits do, with NaN above all.
        let most = |a: f32, b: f32| f32::from_bits(a.to_bits().max(b.to_bits()));
        let norms = sums(&|w, _| w * w, add).sqrt() * sums(&|_, q| q * q, add).sqrt();
        Ok(QuantizationError {
            mean_squared: sums(&|w, q| (w - q).powi(2), add) / count,
            largest: sums(&|w, q| (w - q).abs(), most),
            cosine: if norms == 0.0 { 0.0 } else { sums(&|w, q| w * q, add) / norms },
            zeros: quantized.iter().filter(|&&q| q.into() == 0.0).count() as f32 / count,
        })
    }
}
