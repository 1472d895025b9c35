//! Activations in 4 bits by token, and the way back to floats.

use super::{
    dequantize::dequantize,
    host_activations::HostCodes,
    quantize_activations::{absmax_scale, largest_magnitude},
    row_quantizer::shared_rows,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source, Work},
    },
    ops::reduce::{lanes, rows_extent},
    params,
    shape::Shape,
    wgsl,
};

params! { struct Params { rows: u32, columns: u32, lanes: u32, words: u32 } }
params! { struct BackParams { rows: u32, columns: u32, words: u32, add: u32 } }

/// Codes of a word.
const CODES: usize = 8;

static QUANTIZE_ACTIVATIONS_4BIT: Kernel = shared_rows!(
    "quantize_activations_4bit",
    Params,
    &[read("x", Float("X")), read_write("codes", U32), read_write("scales", F32)],
    1,
    Work::new(8, "elements", 36, 16),
    ["bitnet/absmax_scale", "shared/magnitude", "shared/lanes", "bitnet/quantize_activations_4bit",]
);

static DEQUANTIZE_INT4: Kernel = Kernel::trusted(
    "dequantize_int4",
    BackParams::FIELDS,
    &[read("codes", U32), read("scales", F32), read_write("y", Float("Y"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", EXACT, "bitnet/dequantize_int4"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&QUANTIZE_ACTIVATIONS_4BIT, &DEQUANTIZE_INT4];

/// Activations on the GPU in 4 bits: x ≈ code / scale.
#[derive(Clone, Debug)]
pub struct QuantizedInt4 {
    codes: Tensor<u32>,
    scales: Tensor<f32>,
    shape: Shape,
}

impl QuantizedInt4 {
    /// Activations of a shape that an op will write, and can write again.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn uninit(context: &Context, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let (rows, columns) = shape.as_matrix();
        Ok(Self {
            codes: Tensor::uninit(context, [rows, columns.div_ceil(CODES)])?,
            scales: Tensor::uninit(context, [rows])?,
            shape,
        })
    }

    /// `[rows, ⌈k / 8⌉]` words of eight codes each, in two's complement, the first in the lowest
    /// bits; 0 beyond the end of a row.
    pub fn codes(&self) -> &Tensor<u32> {
        &self.codes
    }

    /// `[rows]`; NaN for a row that is not finite.
    pub fn scales(&self) -> &Tensor<f32> {
        &self.scales
    }

    /// The shape of what is quantized.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Copies codes and scales back.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn read(&self) -> Result<HostCodes> {
        let (words, scales) = (self.codes.read(), self.scales.read());
        let (words, scales) = (words.await?, scales.await?);
        let columns = self.shape.as_matrix().1;
        // Shifted up and down again, which brings the sign along.
        let code = |words: &[u32], i: usize| {
            ((words[i / CODES] << (28 - 4 * (i % CODES))) as i32 >> 28) as i8
        };
        let row = |words: &[u32]| (0..columns).map(|i| code(words, i)).collect::<Vec<_>>();
        Ok(HostCodes {
            codes: words.chunks(columns.div_ceil(CODES).max(1)).flat_map(row).collect(),
            scales,
            zero_points: None,
        })
    }
}

/// Records the quantizer into activations of the caller.
///
/// # Errors
/// [`Error::Shape`] if they have another shape.
pub(crate) fn quantize_activations_4bit_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    xq: &QuantizedInt4,
) -> Result<()> {
    if xq.shape != x.shape() {
        let (op, expected) = ("quantize_activations_4bit", x.shape().to_string());
        return Err(Error::Shape { op, what: "the output", expected, found: xq.shape });
    }
    let (rows, columns) = x.shape().as_matrix();
    let words = columns.div_ceil(CODES);
    let params = Params {
        rows: rows as u32,
        columns: columns as u32,
        lanes: lanes(columns) as u32,
        words: words as u32,
    };
    encoder.dispatch(
        &QUANTIZE_ACTIVATIONS_4BIT,
        &params,
        &[x, &xq.codes, &xq.scales],
        rows_extent(rows, columns),
    )
}

dequantize!(
    QuantizedInt4,
    "code / scale, of the shape of what was quantized; NaN in a row that is not finite."
);

impl QuantizedInt4 {
    fn values_shape(&self) -> Shape {
        self.shape
    }

    fn record<T: Float>(&self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check_shape("dequantize", self.shape)?;
        let (rows, columns) = self.shape.as_matrix();
        let words = columns.div_ceil(CODES);
        let params = BackParams {
            rows: rows as u32,
            columns: columns as u32,
            words: words as u32,
            add: y.adds().into(),
        };
        encoder.dispatch(
            &DEQUANTIZE_INT4,
            &params,
            &[&self.codes, &self.scales, y.tensor()],
            [rows * words, 1, 1],
        )
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`ActivationQuantizer::int4`](crate::bitnet::ActivationQuantizer::int4):
    /// bit-identical. `x` is `[tokens, features]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn quantize_activations_4bit<T: Float>(
        x: &[T],
        tokens: usize,
        features: usize,
    ) -> Result<HostCodes> {
        if tokens.checked_mul(features) != Some(x.len()) {
            return Err(Error::Length { shape: [tokens, features].into(), found: x.len() });
        }
        let row = |token: usize| x[token * features..][..features].iter().map(|&v| v.into());
        let scales: Vec<f32> =
            (0..tokens).map(|token| absmax_scale(largest_magnitude(row(token)), 7.0)).collect();
        // Of NaN, the scale of a row that is not finite, 0.
        let code = |(i, &v): (usize, &T)| {
            (v.into() * scales[i / features]).round_ties_even().clamp(-8.0, 7.0) as i8
        };
        let codes = x.iter().enumerate().map(code).collect();
        Ok(HostCodes { codes, scales, zero_points: None })
    }
}
