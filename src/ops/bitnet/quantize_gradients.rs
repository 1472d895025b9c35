//! quantize_gradients: int8 by row with stochastic rounding, which leaves sums of many steps
//! unbiased. Gupta et al. 2015, "Deep Learning with Limited Numerical Precision", arXiv:1502.02551.

use super::{
    host_activations::HostCodes,
    int8::{QuantizedInt8, Scaled, word_extent, word_lanes},
    quantize_activations::{absmax_scale, largest_magnitude},
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
    ops::philox::word,
    params,
};

params! { struct Params { rows: u32, columns: u32, lanes: u32, seed_low: u32, seed_high: u32 } }

static QUANTIZE_GRADIENTS: Kernel = shared_rows!(
    "quantize_gradients",
    Params,
    &[read("x", Float("X")), read_write("codes", U32), read_write("scales", F32)],
    // A word of the tree and two of the grid for each thread.
    3,
    Work::new(4, "elements", 20, 8),
    [
        "shared/finite",
        "shared/philox",
        "bitnet/absmax_scale",
        "shared/magnitude",
        "shared/lanes",
        "bitnet/quantize_rows",
        "bitnet/quantize_gradients",
    ]
);

pub(super) const KERNELS: &[&Kernel] = &[&QUANTIZE_GRADIENTS];

/// Records the quantizer into tensors of the caller.
///
/// # Errors
/// [`Error::Shape`] if codes do not have the shape of `x`, or scales not one for each row;
/// [`Error::Invalid`] if there are zero points.
pub(crate) fn quantize_gradients_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    seed: u64,
    out: &QuantizedInt8,
) -> Result<()> {
    out.check_output("quantize_gradients", x.shape(), Scaled::Rows, false)?;
    let (rows, columns) = x.shape().as_matrix();
    let params = Params {
        rows: rows as u32,
        columns: columns as u32,
        lanes: word_lanes(columns) as u32,
        seed_low: seed as u32,
        seed_high: (seed >> 32) as u32,
    };
    encoder.dispatch(
        &QUANTIZE_GRADIENTS,
        &params,
        &[x, &out.codes, &out.scales],
        word_extent(rows, columns),
    )
}

/// floor(v·scale + u) in units of 2^-24, as integers: on GPUs a product may be fused with what is
/// added to it.
fn stochastic(v: f32, scale: f32, word: u32) -> i8 {
    if scale.is_nan() {
        return 0;
    }
    let units = ((v * scale).clamp(-127.0, 127.0) * 16_777_216.0).round_ties_even() as i32;
    ((units + (word >> 8) as i32) >> 24) as i8
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of
    /// [`ActivationQuantizer::stochastic`](crate::bitnet::ActivationQuantizer::stochastic):
    /// bit-identical. `x` is `[rows, columns]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn quantize_gradients<T: Float>(
        x: &[T],
        rows: usize,
        columns: usize,
        seed: u64,
    ) -> Result<HostCodes> {
        if rows.checked_mul(columns) != Some(x.len()) {
            return Err(Error::Length { shape: [rows, columns].into(), found: x.len() });
        }
        let row = |row: usize| x[row * columns..][..columns].iter().map(|&v| v.into());
        let scales: Vec<f32> =
            (0..rows).map(|i| absmax_scale(largest_magnitude(row(i)), 127.0)).collect();
        let code = |(i, &v): (usize, &T)| stochastic(v.into(), scales[i / columns], word(seed, i));
        Ok(HostCodes { codes: x.iter().enumerate().map(code).collect(), zero_points: None, scales })
    }
}
