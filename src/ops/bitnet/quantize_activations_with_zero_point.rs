//! quantize_activations_with_zero_point: asymmetric int8 by token, for numbers that lie on one side
//! of 0, as after relu. Jacob et al. 2018, arXiv:1712.05877; BitNet (arXiv:2310.11453) has it
//! before non-linear functions.

use super::{
    host_activations::HostCodes,
    int8::{QuantizedInt8, Scaled, word_extent, word_lanes},
    quantize_activations::absmax_scale,
    row_quantizer::shared_rows,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        source::Work,
    },
    params,
};

params! { struct Params { rows: u32, columns: u32, lanes: u32 } }

static QUANTIZE_ACTIVATIONS_WITH_ZERO_POINT: Kernel = shared_rows!(
    "quantize_activations_with_zero_point",
    Params,
    &[
        read("x", Float("X")),
        read_write("codes", U32),
        read_write("scales", F32),
        read_write("zero_points", I32)
    ],
    // Two words of the tree and two of the grid for each thread.
    4,
    Work::new(4, "elements", 20, 8),
    [
        "shared/finite",
        "shared/order",
        "bitnet/absmax_scale",
        "shared/extremes",
        "shared/lanes",
        "bitnet/quantize_rows",
        "bitnet/quantize_activations_with_zero_point",
    ]
);

pub(super) const KERNELS: &[&Kernel] = &[&QUANTIZE_ACTIVATIONS_WITH_ZERO_POINT];

/// Records the quantizer into tensors of the caller.
///
/// # Errors
/// [`Error::Shape`] if codes do not have the shape of `x`, or scales and zero points not one for
/// each row; [`Error::Invalid`] if there are no zero points.
pub(crate) fn quantize_activations_with_zero_point_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    out: &QuantizedInt8,
) -> Result<()> {
    out.check_output("quantize_activations_with_zero_point", x.shape(), Scaled::Rows, true)?;
    let (rows, columns) = x.shape().as_matrix();
    let params =
        Params { rows: rows as u32, columns: columns as u32, lanes: word_lanes(columns) as u32 };
    let (kernel, extent) = (&QUANTIZE_ACTIVATIONS_WITH_ZERO_POINT, word_extent(rows, columns));
    encoder.dispatch(
        kernel,
        &params,
        &[x, &out.codes, &out.scales, &out.bound_zero_points()],
        extent,
    )
}

/// What codes stand for: x ≈ (code - zero point) / scale.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub scale: f32,
    pub zero_point: i32,
}

impl Grid {
    /// From the smallest to the largest.
    fn of(row: impl Iterator<Item = f32> + Clone) -> Self {
        match row.clone().all(f32::is_finite) {
            true => Self::within(row.clone().fold(0.0, f32::min), row.fold(0.0, f32::max)),
            false => Self { scale: f32::NAN, zero_point: 0 },
        }
    }

    /// Finite, low <= high; 0 is added to the range.
    pub fn within(low: f32, high: f32) -> Self {
        let (low, high) = (low.min(0.0), high.max(0.0));
        // Halved first, since the difference may be no float.
        let scale = absmax_scale(0.5 * high - 0.5 * low, 127.5);
        Self {
            scale,
            zero_point: ((-low * scale).round_ties_even() - 128.0).clamp(-128.0, 127.0) as i32,
        }
    }

    /// The code of a number; of NaN that of 0.
    pub fn code(self, v: f32) -> i8 {
        let steps = if v.is_nan() || self.scale.is_nan() {
            0.0
        } else {
            (v * self.scale).round_ties_even()
        };
        (steps + self.zero_point as f32).clamp(-128.0, 127.0) as i8
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of
    /// [`ActivationQuantizer::with_zero_point`](crate::bitnet::ActivationQuantizer::with_zero_point):
    /// bit-identical. `x` is `[tokens, features]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn quantize_activations_with_zero_point<T: Float>(
        x: &[T],
        tokens: usize,
        features: usize,
    ) -> Result<HostCodes> {
        if tokens.checked_mul(features) != Some(x.len()) {
            return Err(Error::Length { shape: [tokens, features].into(), found: x.len() });
        }
        let row = |token: usize| x[token * features..][..features].iter().map(|&v| v.into());
        let grids: Vec<_> = (0..tokens).map(|token| Grid::of(row(token))).collect();
        Ok(HostCodes {
            codes: x.iter().enumerate().map(|(i, &v)| grids[i / features].code(v.into())).collect(),
            scales: grids.iter().map(|grid| grid.scale).collect(),
            zero_points: Some(grids.iter().map(|grid| grid.zero_point).collect()),
        })
    }
}
