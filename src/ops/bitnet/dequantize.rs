//! Back to floats: W = (code - 1)·scale, x = code / scale.

use super::activations::QuantizedActivations;
use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Source, Work},
    },
    msl, params,
    weights::ternary::{layout::row_words, matrix::TernaryMatrix, scales::groups},
    wgsl,
};

params! { struct Weights { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32 } }
params! { struct Activations { tokens: u32, features: u32, words: u32 } }

pub(super) static WEIGHTS: Kernel = Kernel::trusted(
    "dequantize_weights",
    Weights::FIELDS,
    &[read("codes", U32), read("w_scale", F32), read_write("y", Float("Y"))],
    &[
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "shared/ternary", "bitnet/dequantize_weights"]).work(Work::new(1, "element", 8, 1)),
        Source::msl(msl!["shared/prelude", "shared/ternary", "bitnet/dequantize_weights"]),
    ],
)
.flat();

const fn activations(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] = &[read("x", U32), read("x_scale", F32), read_write("y", Float("Y"))];
    Kernel::trusted(name, Activations::FIELDS, BINDINGS, sources).entry("dequantize_activations").flat()
}

pub(super) static ACTIVATIONS_INT8: Kernel = activations(
    "dequantize_activations_int8",
    &[
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "shared/exact", "bitnet/unpack_int8", "bitnet/dequantize_activations"]),
        Source::msl(msl!["shared/prelude", "shared/exact", "bitnet/layout_int8", "bitnet/dequantize_activations"]),
    ],
);

pub(super) static ACTIVATIONS_HALF: Kernel = activations(
    "dequantize_activations_half",
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/exact",
            "bitnet/half_planes",
            "bitnet/unpack_half",
            "bitnet/dequantize_activations"
        ]),
        Source::msl(msl!["shared/prelude", "shared/exact", "bitnet/layout_half", "bitnet/dequantize_activations"]),
    ],
);

/// Ternary weights as floats, `[rows, columns]`. The CPU twin is [`PackedTernary::dequantize`](crate::PackedTernary::dequantize).
pub fn dequantize_weights<T: Float>(encoder: &mut Encoder, w: &TernaryMatrix) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), [w.rows(), w.columns()])?;
    let params = Weights {
        rows: w.rows() as u32,
        columns: w.columns() as u32,
        words: w.row_words() as u32,
        groups: groups(w.columns(), w.group()) as u32,
        group_size: w.group().unwrap_or(w.columns()) as u32,
    };
    encoder.dispatch(&WEIGHTS, &params, &[&w.codes, &w.scales, &y], [w.rows() * w.row_words(), 1, 1])?;
    Ok(y)
}

/// Quantised activations as floats, `[tokens, features]`. The CPU twin is [`HostActivations::dequantize`](super::HostActivations::dequantize).
pub fn dequantize_activations<T: Float>(encoder: &mut Encoder, x: &QuantizedActivations) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), [x.tokens(), x.features()])?;
    let words = row_words(x.features());
    let params = Activations { tokens: x.tokens() as u32, features: x.features() as u32, words: words as u32 };
    let kernel = x.layout().choose(&ACTIVATIONS_INT8, &ACTIVATIONS_HALF);
    encoder.dispatch(kernel, &params, &[&x.codes, &x.scales, &y], [x.tokens() * words * 4, 1, 1])?;
    Ok(y)
}
