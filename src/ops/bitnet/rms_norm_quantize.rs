//! RMSNorm and the activation quantizer in one dispatch: n = x / sqrt(mean(x²) + eps) · gain, then
//! as `quantize_activations`.

use super::{
    activations::QuantizedActivations,
    host_activations::HostActivations,
    quantize_activations::quantize_rows,
    row_quantizer::{RowQuantizer, row_quantizer},
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        source::Work,
    },
    ops::rms::{inverse_rms, normalize},
    params,
    weights::ternary::layout::row_words,
};

params! { struct Params { tokens: u32, features: u32, words: u32, eps: f32 } }

const BINDINGS: &[Binding] = &[
    read("source", Float("X")),
    read("gain", F32),
    read_write("x", U32),
    read_write("x_scale", F32),
    read_write("x_sum", I32),
];

static QUANTIZER: RowQuantizer = row_quantizer!(
    "rms_norm_quantize", "rms_norm_quantize" in "bitnet/rms_norm_quantize", Params, BINDINGS, 7, Work::new(4, "elements", 36, 16),
    wgsl ["shared/rms", "shared/rms_row"], any ["bitnet/source_any", "shared/row_numbers", "shared/gain_any"],
    whole ["bitnet/source_whole", "shared/gain_whole"], msl ["shared/rms", "shared/rms_row"]
);

pub(super) const KERNELS: &[&Kernel] = &QUANTIZER.kernels();

/// Records the quantizer into activations of the caller.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub(crate) fn rms_norm_quantize_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
    xq: &QuantizedActivations,
) -> Result<()> {
    let op = "rms_norm_quantize";
    let (tokens, features) = x.shape().as_matrix();
    if gain.shape().dims() != [features] {
        return Err(Error::Shape {
            op,
            what: "gain",
            expected: format!("[{features}]"),
            found: gain.shape(),
        });
    }
    xq.check(op, tokens, features, encoder)?;
    let words = row_words(features) as u32;
    let params = Params { tokens: tokens as u32, features: features as u32, words, eps };
    let kernel = QUANTIZER.choose(xq.layout(), tokens, features, encoder);
    encoder.dispatch(kernel, &params, &[x, gain, &xq.codes, &xq.scales, &xq.sums], [tokens, 1, 1])
}

pub(crate) mod host {
    use super::*;

    /// CPU reference of [`ActivationQuantizer::int8`](crate::bitnet::ActivationQuantizer::int8)
    /// after a norm: bit-identical. `x` is `[tokens, gain.len()]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn rms_norm_quantize<T: Float>(
        x: &[T],
        tokens: usize,
        gain: &[f32],
        eps: f32,
    ) -> Result<HostActivations> {
        let features = gain.len();
        if tokens.checked_mul(features) != Some(x.len()) {
            return Err(Error::Length { shape: [tokens, features].into(), found: x.len() });
        }
        let row = |token: usize| {
            let mut row: Vec<f32> =
                x[token * features..][..features].iter().map(|&v| v.into()).collect();
            let inverse = inverse_rms(&row, eps);
            normalize(&mut row, gain, inverse);
            row
        };
        Ok(quantize_rows(tokens, features, row))
    }
}
