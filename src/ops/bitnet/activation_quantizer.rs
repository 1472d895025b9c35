//! The quantizer of activations: its format, and what comes before it in the same dispatch.

use super::{
    activations::{Layout, QuantizedActivations},
    gate::Gate,
    gate_block_float::gate_block_float_into,
    gate_quantize::{Norm, gate_quantize_into},
    int4::{QuantizedInt4, quantize_activations_4bit_into},
    int8::{QuantizedInt8, Scaled},
    plan::layout_on,
    quantize_activations::quantize_activations_into,
    quantize_activations_by_tensor::{
        quantize_activations_by_tensor_into, quantize_activations_static,
        quantize_activations_static_into,
    },
    quantize_activations_with_zero_point::quantize_activations_with_zero_point_into,
    quantize_block_float::{BlockFloatActivations, block_columns, quantize_block_float_into},
    quantize_gradients::quantize_gradients_into,
    rms_norm_block_float::rms_norm_block_float_into,
    rms_norm_quantize::rms_norm_quantize_into,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
};
use std::{any::Any, marker::PhantomData};

/// Quantizes activations `[.., k]`. The options say to what, and so what the result `Q` is.
///
/// | quantizer | code, ties to even | result |
/// | --- | --- | --- |
/// | [`int8()`](Self::int8) | round(x·a), a = 127 / max(max\|x\|, 1e-5) of the token | [`QuantizedActivations`] |
/// | `int8().per_tensor()` | likewise, a of the tensor | [`QuantizedInt8`] |
/// | `int8().with_zero_point()` | round(x·a) + z, from the smallest to the largest of the token | [`QuantizedInt8`] |
/// | `int8().static_range(low, high)` | round(x·a) + z, of a range that calibration found | [`QuantizedInt8`] |
/// | `int8().stochastic(seed)` | floor(x·a + u), u random in 0..1 | [`QuantizedInt8`] |
/// | `int4()` | round(x·a), a = 7 / max(max\|x\|, 1e-5) of the token | [`QuantizedInt4`] |
/// | `block_float(group)` | multiples of a power of two for each block | [`BlockFloatActivations`] |
///
/// A norm and a gate before it are for the first (both) and the last (one of them). Other
/// combinations are errors.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, bitnet::{ActivationQuantizer, BitLinear}};
/// # use bitnet_wgpu::weights::TernaryMatrix;
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>, gain: &Tensor<f32>, w: &TernaryMatrix) -> Result<()> {
/// let xq = ActivationQuantizer::int8().norm((gain, 1e-5)).quantize(encoder, x)?;
/// let y = BitLinear::new(w).forward(encoder, &xq)?;
/// let affine = ActivationQuantizer::int8().with_zero_point().quantize(encoder, x)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a quantizer does nothing until `quantize` records it"]
pub struct ActivationQuantizer<'a, Q = QuantizedActivations> {
    format: Format,
    norm: Norm<'a, Tensor<f32>>,
    gate: Option<Gate>,
    result: PhantomData<fn() -> Q>,
}

/// What activations are quantized to.
#[derive(Clone, Copy)]
enum Format {
    PerToken(Option<Layout>),
    PerTensor,
    ZeroPoint,
    Static(f32, f32),
    Stochastic(u64),
    Int4,
    BlockFloat(Option<usize>),
}

impl<'a> ActivationQuantizer<'a> {
    /// Returns a quantizer to int8 with a scale per token, in the layout that is best for this
    /// device and k. Integer sums: [`BitLinear`](super::BitLinear) of the result is bit-identical
    /// on all devices.
    ///
    /// A row that holds a NaN or an infinity gets codes 0 and scale NaN: everything computed from
    /// it is NaN, other rows are untouched.
    ///
    /// Squares of a norm are summed as integers, so the codes after one are bit-identical, too.
    /// After the gates SiLU and GELU, a code on a rounding boundary may differ by one.
    pub fn int8() -> Self {
        Self::of(Format::PerToken(None))
    }

    /// Sets the layout of the codes. Products with per-group scales and with
    /// [`IntMatrix`](crate::weights::IntMatrix) take [`Layout::Int8`].
    pub fn layout(self, layout: Layout) -> Self {
        Self { format: Format::PerToken(Some(layout)), ..self }
    }

    /// Takes one scale for the tensor. (BitNet, arXiv:2310.11453, quantizes so in training.) Where
    /// `x` holds a NaN or an infinity, all codes are 0 and the scale is NaN.
    pub fn per_tensor(self) -> ActivationQuantizer<'a, QuantizedInt8> {
        self.with(Format::PerTensor)
    }

    /// Takes codes from the smallest number of a token to its largest: code = clamp(round(x·a) + z,
    /// -128, 127), where a = 255 / (high - low) and z = round(-low·a) - 128. low and high are the
    /// extremes of the row and 0, whose code is the zero point z. high - low counts as 2e-5 at
    /// least. (PyTorch's scale is 1 / a.)
    ///
    /// A row that holds a NaN or an infinity gets codes 0, zero point 0 and scale NaN.
    pub fn with_zero_point(self) -> ActivationQuantizer<'a, QuantizedInt8> {
        self.with(Format::ZeroPoint)
    }

    /// Takes codes from `low` to `high`, as [`with_zero_point`](Self::with_zero_point) has them for
    /// a row: the range is widened to hold 0, and counts as 2e-5 at least. Numbers beyond it,
    /// infinities too, get the code of its end; NaN gets that of 0. Nothing is measured, so this is
    /// one dispatch. Unless low <= high, both finite, `quantize` is an error.
    pub fn static_range(self, low: f32, high: f32) -> ActivationQuantizer<'a, QuantizedInt8> {
        self.with(Format::Static(low, high))
    }

    /// Rounds at random, for gradients: code = floor(x·a + u), from -127 to 127, where u is from 0
    /// to below 1, in steps of 2^-24. The expected code is x·a, to 2^-25, where rounding to the
    /// nearest would lose small gradients in every step.
    ///
    /// u follows from `seed` and the place of the number alone (Philox 4×32-10): the codes are the
    /// same on every backend. Take another seed for each step. A row that holds a NaN or an
    /// infinity gets codes 0 and scale NaN.
    pub fn stochastic(self, seed: u64) -> ActivationQuantizer<'a, QuantizedInt8> {
        self.with(Format::Stochastic(seed))
    }
}

impl<'a> ActivationQuantizer<'a, QuantizedInt4> {
    /// Returns a quantizer to int4 with a scale per token. (BitNet a4.8, Wang et al. 2024,
    /// arXiv:2411.04965.) A row that holds a NaN or an infinity gets codes 0 and scale NaN.
    pub fn int4() -> Self {
        Self::of(Format::Int4)
    }
}

impl<'a> ActivationQuantizer<'a, BlockFloatActivations> {
    /// Returns a quantizer to block floating point: of each block of columns,
    /// multiples of a power of two, the smallest for which none is 127·2^8 or more. So a number is off by at most 2^-14.98 of the largest of its block; where that is below
    /// 2^-95, by at most 2^-110. A block that holds an infinity or a NaN keeps it, and what is
    /// finite there becomes a multiple of 2^114.
    ///
    /// The block is 128 columns for matrices without per-group scales. For matrices with scales per
    /// `group` of columns it is the largest power of two that divides the group, at most 128; a
    /// group is a multiple of 16.
    pub fn block_float(group: Option<usize>) -> Self {
        Self::of(Format::BlockFloat(group))
    }
}

impl<'a, Q> ActivationQuantizer<'a, Q> {
    fn of(format: Format) -> Self {
        Self { format, norm: None, gate: None, result: PhantomData }
    }

    fn with<R>(self, format: Format) -> ActivationQuantizer<'a, R> {
        ActivationQuantizer { format, norm: self.norm, gate: self.gate, result: PhantomData }
    }

    /// Normalizes each token by RMSNorm, with a gain `[k]` and eps, before it is quantized. With a
    /// gate, what the gate leaves is normalized.
    pub fn norm(self, gain_and_eps: impl Into<Option<(&'a Tensor<f32>, f32)>>) -> Self {
        Self { norm: gain_and_eps.into(), ..self }
    }

    /// Takes `x` `[.., 2·k]` for k gates followed by k ups, and quantizes act(gate)·up.
    pub fn gate(self, gate: impl Into<Option<Gate>>) -> Self {
        Self { gate: gate.into(), ..self }
    }

    /// Returns rows and columns of the result.
    fn matrix<T: Float>(&self, x: &Tensor<T>) -> [usize; 2] {
        let (rows, columns) = x.shape().as_matrix();
        [rows, if self.gate.is_some() { columns / 2 } else { columns }]
    }

    /// Refuses a norm and a gate.
    fn check_plain(&self, format: &str) -> Result<()> {
        if self.norm.is_none() && self.gate.is_none() {
            return Ok(());
        }
        Err(unsupported(&format!("a norm or a gate before {format}")))
    }
}

/// Gives a quantizer `quantize` and `quantize_into`, where it has `made`, which records into what
/// it allocates, and `record`.
macro_rules! quantize {
    ($result:ty) => {
        impl ActivationQuantizer<'_, $result> {
            /// Records the quantizer and returns its result.
            ///
            /// # Errors
            /// [`Error::Shape`] if `x` and the gain do not fit; [`Error::Invalid`] for a
            /// combination that is not supported or more features than an integer sum allows; what
            /// an allocation reports.
            pub fn quantize<T: Float>(
                &self,
                encoder: &mut Encoder,
                x: &Tensor<T>,
            ) -> Result<$result> {
                self.quantized(encoder, x)
            }

            /// Records the quantizer, which writes into what the caller has.
            ///
            /// # Errors
            /// As `quantize`; [`Error::Shape`] or [`Error::Invalid`] if `out` does not fit.
            pub fn quantize_into<T: Float>(
                &self,
                encoder: &mut Encoder,
                x: &Tensor<T>,
                out: &$result,
            ) -> Result<()> {
                self.record(encoder, x, out)
            }
        }
    };
}

quantize!(QuantizedActivations);
quantize!(QuantizedInt8);
quantize!(QuantizedInt4);
quantize!(BlockFloatActivations);

impl ActivationQuantizer<'_, QuantizedActivations> {
    fn quantized<T: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
    ) -> Result<QuantizedActivations> {
        let [rows, columns] = self.matrix(x);
        let layout = match self.format {
            Format::PerToken(Some(layout)) => layout,
            _ => layout_on(columns, encoder.context()),
        };
        let out = QuantizedActivations::uninit(encoder.context(), rows, columns, layout)?;
        self.record(encoder, x, &out)?;
        Ok(out)
    }

    fn record<T: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        out: &QuantizedActivations,
    ) -> Result<()> {
        if let Format::PerToken(Some(layout)) = self.format
            && layout != out.layout()
        {
            return Err(unsupported("an output of another layout than the quantizer's"));
        }
        match (self.gate, self.norm) {
            (Some(gate), norm) => gate_quantize_into(encoder, f32s(x)?, gate, norm, out),
            (None, Some((gain, eps))) => rms_norm_quantize_into(encoder, x, gain, eps, out),
            (None, None) => quantize_activations_into(encoder, x, out),
        }
    }
}

impl ActivationQuantizer<'_, QuantizedInt8> {
    fn quantized<T: Float>(&self, encoder: &mut Encoder, x: &Tensor<T>) -> Result<QuantizedInt8> {
        let (scaled, zeros) = match self.format {
            Format::Static(low, high) => {
                self.check_plain("static int8")?;
                // Scale and zero point are known: they are uploaded.
                return quantize_activations_static(encoder, x, (low, high));
            }
            Format::PerTensor => (Scaled::Tensor, false),
            Format::ZeroPoint => (Scaled::Rows, true),
            _ => (Scaled::Rows, false),
        };
        let out = QuantizedInt8::uninit(encoder.context(), x.shape(), scaled, zeros)?;
        self.record(encoder, x, &out)?;
        Ok(out)
    }

    fn record<T: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        out: &QuantizedInt8,
    ) -> Result<()> {
        self.check_plain("int8 that is not per token")?;
        match self.format {
            Format::Static(low, high) => {
                quantize_activations_static_into(encoder, x, (low, high), out)
            }
            Format::ZeroPoint => quantize_activations_with_zero_point_into(encoder, x, out),
            Format::Stochastic(seed) => quantize_gradients_into(encoder, x, seed, out),
            _ => quantize_activations_by_tensor_into(encoder, x, out),
        }
    }
}

impl ActivationQuantizer<'_, QuantizedInt4> {
    fn quantized<T: Float>(&self, encoder: &mut Encoder, x: &Tensor<T>) -> Result<QuantizedInt4> {
        let out = QuantizedInt4::uninit(encoder.context(), x.shape())?;
        self.record(encoder, x, &out)?;
        Ok(out)
    }

    fn record<T: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        out: &QuantizedInt4,
    ) -> Result<()> {
        self.check_plain("int4")?;
        quantize_activations_4bit_into(encoder, x, out)
    }
}

impl ActivationQuantizer<'_, BlockFloatActivations> {
    fn quantized<T: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
    ) -> Result<BlockFloatActivations> {
        let [rows, columns] = self.matrix(x);
        let out = BlockFloatActivations::uninit(encoder.context(), rows, columns, self.group())?;
        self.record(encoder, x, &out)?;
        Ok(out)
    }

    fn record<T: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        out: &BlockFloatActivations,
    ) -> Result<()> {
        let block = block_columns(self.group());
        if out.block() != block {
            let what = format!("an output with blocks of {} for {block}", out.block());
            return Err(unsupported(&what));
        }
        match (self.gate, self.norm) {
            (Some(_), Some(_)) => {
                Err(unsupported("a norm after a gate before block floating point"))
            }
            (Some(gate), None) => gate_block_float_into(encoder, f32s(x)?, gate, out),
            (None, Some((gain, eps))) => {
                if out.tokens() != x.shape().as_matrix().0 {
                    return out.check("quantize", x.shape().as_matrix().0, out.features());
                }
                rms_norm_block_float_into(encoder, f32s(x)?, 0, gain, eps, out)
            }
            (None, None) => quantize_block_float_into(encoder, x, out),
        }
    }

    fn group(&self) -> Option<usize> {
        match self.format {
            Format::BlockFloat(group) => group,
            _ => None,
        }
    }
}

/// Returns the same tensor, if it is of `f32`.
fn f32s<T: Float>(x: &Tensor<T>) -> Result<&Tensor<f32>> {
    (x as &dyn Any).downcast_ref().ok_or_else(|| unsupported("a gate or a norm of f16 here"))
}

fn unsupported(what: &str) -> Error {
    Error::Invalid { op: "quantize", what: format!("{what} is not supported") }
}
