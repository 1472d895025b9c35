//! Quantized activations in host memory.

use crate::error::{Error, Result};

/// The most input features: up to here |Σ xq·Wq| ≤ 128·k < 2^24, so that the sum is exact as an
/// `f32`, in any order.
pub const MAX_FEATURES: usize = (1 << 17) - 1;

/// [`QuantizedActivations`](crate::bitnet::QuantizedActivations) in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostActivations {
    /// Rows.
    pub tokens: usize,
    /// Columns.
    pub features: usize,
    /// Row-major codes.
    pub codes: Vec<i8>,
    /// One a token; x ≈ code / scale. NaN for a row that is not finite.
    pub scales: Vec<f32>,
}

impl HostActivations {
    /// What products with a matrix of this many columns refuse.
    pub(crate) fn check_bitlinear(&self, columns: usize) -> Result<()> {
        let (op, m) = ("bitlinear", self.tokens);
        if self.features != columns {
            return Err(Error::Shape {
                op,
                what: "x",
                expected: format!("[m, {columns}]"),
                found: [m, self.features].into(),
            });
        }
        if m.checked_mul(columns) != Some(self.codes.len()) || self.scales.len() != m {
            return Err(Error::Length { shape: [m, columns].into(), found: self.codes.len() });
        }
        if columns > MAX_FEATURES {
            let what = format!(
                "{columns} input features; integer sums are exact in f32 up to {MAX_FEATURES}"
            );
            return Err(Error::Invalid { op, what });
        }
        Ok(())
    }

    /// The codes of one token.
    pub fn row(&self, token: usize) -> &[i8] {
        &self.codes[token * self.features..][..self.features]
    }

    /// Returns code / scale: the CPU reference of [`QuantizedActivations::dequantize`](crate::bitnet::QuantizedActivations::dequantize).
    pub fn dequantize(&self) -> Vec<f32> {
        let rows = self.codes.chunks(self.features.max(1)).zip(&self.scales);
        rows.flat_map(|(codes, scale)| codes.iter().map(move |&code| f32::from(code) / scale))
            .collect()
    }
}

/// [`QuantizedInt8`](crate::bitnet::QuantizedInt8) or
/// [`QuantizedInt4`](crate::bitnet::QuantizedInt4) in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCodes {
    /// Row-major codes, a byte each: -128 to 127, or -8 to 7.
    pub codes: Vec<i8>,
    /// One per row, or one for all.
    pub scales: Vec<f32>,
    /// The code of 0, one for each scale; `None` where that is 0.
    pub zero_points: Option<Vec<i32>>,
}

impl HostCodes {
    /// Returns (code - zero point) / scale: the CPU reference of
    /// [`QuantizedInt8::dequantize`](crate::bitnet::QuantizedInt8::dequantize) and
    /// [`QuantizedInt4::dequantize`](crate::bitnet::QuantizedInt4::dequantize).
    pub fn dequantize(&self) -> Vec<f32> {
        let per_scale = self.codes.len() / self.scales.len().max(1);
        let value = |(i, &code): (usize, &i8)| {
            let of = i / per_scale;
            let zero = self.zero_points.as_ref().map_or(0, |zeros| zeros[of]);
            (i32::from(code) - zero) as f32 / self.scales[of]
        };
        self.codes.iter().enumerate().map(value).collect()
    }
}
