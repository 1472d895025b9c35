//! Back to floats: W = (code - 1)·scale, x = code / scale.

use super::activations::QuantizedActivations;
use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source, Work},
    },
    msl, params,
    weights::ternary::{layout::row_words, matrix::TernaryMatrix, scales::groups},
    wgsl,
};

params! { struct Weights { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32, add: u32 } }
params! { struct Activations { tokens: u32, features: u32, words: u32, add: u32 } }

static WEIGHTS: Kernel = Kernel::trusted(
    "dequantize_weights",
    Weights::FIELDS,
    &[read("codes", U32), read("w_scale", F32), read_write("y", Float("Y"))],
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/ternary",
            "bitnet/dequantize_weights"
        ])
        .work(Work::new(1, "element", 8, 1)),
        Source::msl(msl!["shared/prelude", "shared/ternary", "bitnet/dequantize_weights"]),
    ],
)
.flat();

const fn activations(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] =
        &[read("x", U32), read("x_scale", F32), read_write("y", Float("Y"))];
    Kernel::trusted(name, Activations::FIELDS, BINDINGS, sources)
        .entry("dequantize_activations")
        .flat()
}

static ACTIVATIONS_INT8: Kernel = activations(
    "dequantize_activations_int8",
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            EXACT,
            "bitnet/unpack_int8",
            "bitnet/dequantize_activations"
        ]),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "bitnet/layout_int8",
            "bitnet/dequantize_activations"
        ]),
    ],
);

static ACTIVATIONS_HALF: Kernel = activations(
    "dequantize_activations_half",
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            EXACT,
            "bitnet/half_planes",
            "bitnet/unpack_half",
            "bitnet/dequantize_activations"
        ]),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "bitnet/layout_half",
            "bitnet/dequantize_activations"
        ]),
    ],
);

pub(super) const KERNELS: &[&Kernel] = &[&WEIGHTS, &ACTIVATIONS_INT8, &ACTIVATIONS_HALF];

/// Ternary weights as floats, `[rows, columns]`. The CPU twin is
/// [`PackedTernary::dequantize`](crate::weights::PackedTernary::dequantize).
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge); what [`Encoder::dispatch`] reports.
pub fn dequantize_weights<T: Float>(encoder: &mut Encoder, w: &TernaryMatrix) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), [w.rows(), w.columns()])?;
    dequantize_weights_into(encoder, w, &y)?;
    Ok(y)
}

/// [`dequantize_weights`] into a tensor of the caller, `[rows, columns]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if it does not fit.
pub fn dequantize_weights_into<'y, T: Float>(
    encoder: &mut Encoder,
    w: &TernaryMatrix,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    let y = y.into();
    y.check("dequantize_weights", w.rows(), w.columns())?;
    let params = Weights {
        rows: w.rows() as u32,
        columns: w.columns() as u32,
        words: w.row_words() as u32,
        groups: groups(w.columns(), w.group()) as u32,
        group_size: w.group().unwrap_or(w.columns()) as u32,
        add: y.adds().into(),
    };
    encoder.dispatch(
        &WEIGHTS,
        &params,
        &[&w.codes, &w.scales, y.tensor()],
        [w.rows() * w.row_words(), 1, 1],
    )
}

/// Quantised activations as floats, `[tokens, features]`. The CPU twin is
/// [`HostActivations::dequantize`](super::HostActivations::dequantize).
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge); what [`Encoder::dispatch`] reports.
pub fn dequantize_activations<T: Float>(
    encoder: &mut Encoder,
    x: &QuantizedActivations,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), [x.tokens(), x.features()])?;
    dequantize_activations_into(encoder, x, &y)?;
    Ok(y)
}

/// [`dequantize_activations`] into a tensor of the caller, `[tokens, features]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if it does not fit.
pub fn dequantize_activations_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &QuantizedActivations,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    let y = y.into();
    y.check("dequantize_activations", x.tokens(), x.features())?;
    let words = row_words(x.features());
    let (tokens, features, add) = (x.tokens() as u32, x.features() as u32, y.adds().into());
    let params = Activations { tokens, features, words: words as u32, add };
    let kernel = x.layout().choose(&ACTIVATIONS_INT8, &ACTIVATIONS_HALF);
    encoder.dispatch(
        kernel,
        &params,
        &[&x.codes, &x.scales, y.tensor()],
        [x.tokens() * words * 4, 1, 1],
    )
}
