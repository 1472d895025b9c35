//! The feed-forward gate, its sub-norm where there is one, and the quantizer in one dispatch: v =
//! act(gate)·up, v / sqrt(mean(v²) + eps) · gain, then as
//! `quantize_activations`.

use super::{
    activations::QuantizedActivations,
    gate::Gate,
    host_activations::HostActivations,
    quantize_activations::quantize_rows,
    row_quantizer::{RowQuantizer, row_quantizer},
};
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        source::Work,
    },
    ops::{
        exp::exp,
        rms::{inverse_rms, normalize},
    },
    params,
    weights::ternary::layout::row_words,
};

params! { struct Params { tokens: u32, features: u32, words: u32 } }
params! { struct NormParams { tokens: u32, features: u32, words: u32, eps: f32 } }

const BINDINGS: &[Binding] = &[
    read("source", F32),
    read_write("x", U32),
    read_write("x_scale", F32),
    read_write("x_sum", I32),
];
const NORM_BINDINGS: &[Binding] = &[
    read("source", F32),
    read("gain", F32),
    read_write("x", U32),
    read_write("x_scale", F32),
    read_write("x_sum", I32),
];
const WORK: Work = Work::new(4, "elements", 48, 24);

static RELU2: RowQuantizer = row_quantizer!(
    "gate_quantize_relu2", "gate_quantize" in "bitnet/gate_quantize", Params, BINDINGS, 7, WORK,
    wgsl ["tensor/relu2", "bitnet/gate", "bitnet/row_gates"],
    any ["bitnet/gates_any"], whole ["bitnet/gates_whole"],
    msl ["tensor/relu2", "bitnet/gate"]
);
static SILU: RowQuantizer = row_quantizer!(
    "gate_quantize_silu", "gate_quantize" in "bitnet/gate_quantize", Params, BINDINGS, 7, WORK,
    wgsl ["shared/exp", "shared/sigmoid", "tensor/silu", "bitnet/gate", "bitnet/row_gates"],
    any ["bitnet/gates_any"], whole ["bitnet/gates_whole"],
    msl ["shared/exp", "shared/sigmoid", "tensor/silu", "bitnet/gate"]
);
static GELU: RowQuantizer = row_quantizer!(
    "gate_quantize_gelu_tanh", "gate_quantize" in "bitnet/gate_quantize", Params, BINDINGS, 7, WORK,
    wgsl ["shared/exp", "shared/sigmoid", "tensor/gelu_tanh", "bitnet/gate", "bitnet/row_gates"],
    any ["bitnet/gates_any"], whole ["bitnet/gates_whole"],
    msl ["shared/exp", "shared/sigmoid", "tensor/gelu_tanh", "bitnet/gate"]
);
static NORM_RELU2: RowQuantizer = row_quantizer!(
    "gate_norm_quantize_relu2", "gate_norm_quantize" in "bitnet/gate_norm_quantize", NormParams, NORM_BINDINGS, 7, WORK,
    wgsl ["shared/rms", "shared/rms_row", "tensor/relu2", "bitnet/gate", "bitnet/row_gates"],
    any ["bitnet/gates_any", "shared/gain_any"], whole ["bitnet/gates_whole", "shared/gain_whole"],
    msl ["shared/rms", "shared/rms_row", "tensor/relu2", "bitnet/gate"]
);
static NORM_SILU: RowQuantizer = row_quantizer!(
    "gate_norm_quantize_silu", "gate_norm_quantize" in "bitnet/gate_norm_quantize", NormParams, NORM_BINDINGS, 7, WORK,
    wgsl ["shared/rms", "shared/rms_row", "shared/exp", "shared/sigmoid", "tensor/silu", "bitnet/gate", "bitnet/row_gates"],
    any ["bitnet/gates_any", "shared/gain_any"], whole ["bitnet/gates_whole", "shared/gain_whole"],
    msl ["shared/rms", "shared/rms_row", "shared/exp", "shared/sigmoid", "tensor/silu", "bitnet/gate"]
);
static NORM_GELU: RowQuantizer = row_quantizer!(
    "gate_norm_quantize_gelu_tanh", "gate_norm_quantize" in "bitnet/gate_norm_quantize", NormParams, NORM_BINDINGS, 7, WORK,
    wgsl ["shared/rms", "shared/rms_row", "shared/exp", "shared/sigmoid", "tensor/gelu_tanh", "bitnet/gate", "bitnet/row_gates"],
    any ["bitnet/gates_any", "shared/gain_any"], whole ["bitnet/gates_whole", "shared/gain_whole"],
    msl ["shared/rms", "shared/rms_row", "shared/exp", "shared/sigmoid", "tensor/gelu_tanh", "bitnet/gate"]
);

const QUANTIZERS: [[&Kernel; 7]; 6] = [
    RELU2.kernels(),
    SILU.kernels(),
    GELU.kernels(),
    NORM_RELU2.kernels(),
    NORM_SILU.kernels(),
    NORM_GELU.kernels(),
];
pub(super) const KERNELS: &[&Kernel] = QUANTIZERS.as_flattened();

/// The norm before a quantizer: its gain `[k]` and its eps.
pub(crate) type Norm<'a, G> = Option<(&'a G, f32)>;

/// Records the quantizer into activations of the caller.
///
/// # Errors
/// [`Error::Shape`] for an odd number of columns, a gain that is not `[k]`, or activations of other
/// tokens or features; [`Error::Invalid`] for too many features.
pub(crate) fn gate_quantize_into(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    gate: Gate,
    norm: Norm<'_, Tensor<f32>>,
    xq: &QuantizedActivations,
) -> Result<()> {
    let op = "gate_quantize";
    let (tokens, columns) = x.shape().as_matrix();
    let features = columns / 2;
    if !columns.is_multiple_of(2) {
        return Err(Error::Shape {
            op,
            what: "x",
            expected: "[m, 2 · k]".to_owned(),
            found: x.shape(),
        });
    }
    if let Some((gain, _)) = norm
        && gain.shape().dims() != [features]
    {
        return Err(Error::Shape {
            op,
            what: "gain",
            expected: format!("[{features}]"),
            found: gain.shape(),
        });
    }
    xq.check(op, tokens, features, encoder)?;
    let (tokens, features, words) = (tokens as u32, features as u32, row_words(features) as u32);
    let extent = [tokens as usize, 1, 1];
    let Some((gain, eps)) = norm else {
        let quantizer: &'static RowQuantizer = match gate {
            Gate::Relu2 => &RELU2,
            Gate::Silu => &SILU,
            Gate::GeluTanh => &GELU,
        };
        let params = Params { tokens, features, words };
        let kernel = quantizer.choose(xq.layout(), extent[0], columns / 2, encoder);
        return encoder.dispatch(kernel, &params, &[x, &xq.codes, &xq.scales, &xq.sums], extent);
    };
    let quantizer: &'static RowQuantizer = match gate {
        Gate::Relu2 => &NORM_RELU2,
        Gate::Silu => &NORM_SILU,
        Gate::GeluTanh => &NORM_GELU,
    };
    let kernel = quantizer.choose(xq.layout(), extent[0], columns / 2, encoder);
    encoder.dispatch(
        kernel,
        &NormParams { tokens, features, words, eps },
        &[x, gain, &xq.codes, &xq.scales, &xq.sums],
        extent,
    )
}

/// Gates to gated numbers: max(g, 0)² · u.
#[multiversion::multiversion(targets = "simd")]
fn relu2(gates: &mut [f32], ups: &[f32]) {
    gates.iter_mut().zip(ups).for_each(|(g, u)| *g = g.max(0.0) * g.max(0.0) * u);
}

/// Gates to gated numbers: g / (1 + e^-g) · u.
#[multiversion::multiversion(targets = "simd")]
fn silu(gates: &mut [f32], ups: &[f32]) {
    gates.iter_mut().zip(ups).for_each(|(g, u)| *g = *g / (1.0 + exp(-*g)) * u);
}

/// Gates to gated numbers: g / (1 + e^-2v) · u with v = √(2/π)·(g + 0.044715·g³).
#[multiversion::multiversion(targets = "simd")]
fn gelu_tanh(gates: &mut [f32], ups: &[f32]) {
    gates.iter_mut().zip(ups).for_each(|(g, u)| {
        *g = *g / (1.0 + exp(-2.0 * (0.797_884_6 * *g * (0.044_715 * *g * *g + 1.0)))) * u
    });
}

pub(crate) mod host {
    use super::*;

    /// CPU reference of [`ActivationQuantizer::int8`](crate::bitnet::ActivationQuantizer::int8)
    /// after a gate, and after a norm if there is one. Rows of `x` hold `features` gates, then as
    /// many ups.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows or the gain has another length.
    pub fn gate_quantize(
        x: &[f32],
        features: usize,
        gate: Gate,
        norm: Norm<'_, [f32]>,
    ) -> Result<HostActivations> {
        let columns = features.saturating_mul(2).max(1);
        if !x.len().is_multiple_of(columns) {
            return Err(Error::Length {
                shape: [x.len() / columns, columns].into(),
                found: x.len(),
            });
        }
        if let Some((gain, _)) = norm
            && gain.len() != features
        {
            return Err(Error::Length { shape: [features].into(), found: gain.len() });
        }
        let tokens = x.len() / columns;
        let row = |token: usize| {
            let (gates, ups) = x[token * columns..][..2 * features].split_at(features);
            let mut gated = gates.to_vec();
            match gate {
                Gate::Relu2 => relu2(&mut gated, ups),
                Gate::Silu => silu(&mut gated, ups),
                Gate::GeluTanh => gelu_tanh(&mut gated, ups),
            }
            if let Some((gain, eps)) = norm {
                let inverse = inverse_rms(&gated, eps);
                normalize(&mut gated, gain, inverse);
            }
            gated
        };
        Ok(quantize_rows(tokens, features, row))
    }
}
