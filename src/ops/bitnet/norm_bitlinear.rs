//! RMSNorm, the activation quantizer and BitLinear in one dispatch, for few tokens: what decoding
//! is made of. Bit-identical to `rms_norm_quantize` and
//! [`bitlinear_quantized`](super::bitlinear_quantized) one after another.

use super::{
    activations::{Layout, QuantizedActivations},
    bitlinear::{bitlinear_quantized, bitlinear_quantized_into},
    gate::{self, Gate},
    gate_quantize::Norm,
    plan::{layout, layout_on},
    quantize_activations::quantize_activations_into,
    rms_norm_quantize::rms_norm_quantize_into,
};
use crate::{
    error::{Error, Result},
    gpu::{
        capabilities::Capabilities,
        context::Context,
        encoder::Encoder,
        out::Out,
        recording::{Extent, product},
        tensor::Tensor,
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{CELLS, CELLS_SHUFFLED, EXACT, Part, REDUCE, Source, Work},
    },
    language::ShaderLanguage,
    params,
    tuning::TuningKey,
    weights::ternary::{matrix::TernaryMatrix, packed::PackedTernary},
};

params! { struct Params { rows: u32, features: u32, words: u32, tile: u32, normalise: u32, eps: f32, add: u32 } }

const BINDINGS: &[Binding] = &[
    read("codes", U32),
    read("w_scale", F32),
    read("source", F32),
    read("gain", F32),
    read_write("y", F32),
];

const fn kernel(name: &'static str, sources: &'static [Source]) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry("norm_bitlinear")
}

const PARAMS_MSL: Part = Part::new(
    "Params",
    "struct Params { uint rows, features, words, tile, normalise; float eps; uint add; };\n",
);

/// Threads, the source's numbers, bytes of workgroup memory, weights of a turn. The tile is given at
/// run time, so the grid counts workgroups.
const fn source(
    source: Source,
    threads: u32,
    constants: &'static [(&'static str, u32)],
    bytes: u32,
    weights: u32,
) -> Source {
    source
        .workgroup_size([threads, 1, 1])
        .tile([1, 1, 1])
        .constants(constants)
        .workgroup_bytes(bytes)
        .work(Work::new(weights, "weights", weights / 4, 2 * weights))
}

/// The kernels of an epilogue for each layout, for rows of most models' hidden states and for those
/// of their feed-forward layers: as many features as 16 KiB of workgroup memory hold.
struct Family {
    /// By the turns that 32 lanes take for a row, all of whose weights are loaded before the first
    /// is multiplied.
    int8: [Kernel; 4],
    half: [Kernel; 2],
}

/// Declares a [`Family`]; `$wgsl` and `$msl` are the parts that say what becomes of a product.
macro_rules! family_of {
    ($family:ident, $name:literal, wgsl [$($wgsl:tt),*], msl [$($msl:tt),*]) => {
        static $family: Family = {
            const INT8: &[$crate::kernel::source::Part] = $crate::wgsl![
                REDUCE, CELLS_SHUFFLED, EXACT, "shared/rms", "bitnet/absmax_scale", "bitnet/dot_int8", "bitnet/row_int8", "bitnet/row_sums", $($wgsl,)*
                "bitnet/norm_bitlinear"
            ];
            const HALF: &[$crate::kernel::source::Part] = $crate::wgsl![
                REDUCE, CELLS, EXACT, "shared/rms", "bitnet/absmax_scale", "bitnet/dot_f16", "bitnet/row_f16", "bitnet/row_sums", $($wgsl,)*
                "bitnet/norm_bitlinear"
            ];
            const METAL: &[$crate::kernel::source::Part] = $crate::msl![
                "shared/prelude", PARAMS_MSL, "shared/exact", "bitnet/absmax_scale", "shared/reduce", "shared/rms", "bitnet/dot_f16", "shared/share_sums", $($msl,)*
                "bitnet/norm_bitlinear"
            ];
            const fn int8(constants: &'static [(&'static str, u32)], bytes: u32, weights: u32) -> Source {
                source(Source::wgsl(INT8), 256, constants, bytes, weights)
            }
            const fn half(constants: &'static [(&'static str, u32)], bytes: u32) -> Source {
                source(Source::wgsl(HALF), 256, constants, bytes, 8 * 16)
            }
            const fn metal(constants: &'static [(&'static str, u32)], bytes: u32) -> Source {
                source(Source::msl(METAL), 256, constants, bytes, 8 * 16)
            }
            Family {
                int8: [
                    kernel(concat!($name, "_int8_3"), &[int8(&[("VECTORS", 192), ("ROWS", 4), ("TURNS", 3)], 5184, 3 * 2 * 4 * 16)]),
                    kernel(concat!($name, "_int8_4"), &[int8(&[("VECTORS", 256), ("ROWS", 4), ("TURNS", 4)], 6208, 4 * 2 * 4 * 16)]),
                    kernel(concat!($name, "_int8_7"), &[int8(&[("VECTORS", 448), ("ROWS", 2), ("TURNS", 7)], 9280, 7 * 2 * 2 * 16)]),
                    kernel(concat!($name, "_int8_8"), &[int8(&[("VECTORS", 512), ("ROWS", 2), ("TURNS", 8)], 10_304, 8 * 2 * 2 * 16)]),
                ],
                half: [
                    kernel(concat!($name, "_f16"), &[
                        half(&[("VECTORS", 256), ("ROWS", 8), ("TURNS", 1)], 10_304),
                        metal(&[("VECTORS", 256), ("ROWS", 8)], 8448),
                    ]),
                    kernel(concat!($name, "_f16_wide"), &[
                        half(&[("VECTORS", 444), ("ROWS", 8), ("TURNS", 1)], 16_320),
                        metal(&[("VECTORS", 444), ("ROWS", 8)], 14_464),
                    ]),
                ],
            }
        };
    };
}

family_of!(STORED, "norm_bitlinear", wgsl["bitnet/rows_stored"], msl["bitnet/rows_stored"]);
family_of!(
    RELU2, "norm_bitlinear_relu2",
    wgsl ["tensor/relu2", "bitnet/gate", "bitnet/rows_gated"], msl ["tensor/relu2", "bitnet/gate", "bitnet/rows_gated"]
);
family_of!(
    SILU, "norm_bitlinear_silu",
    wgsl ["shared/exp", "shared/sigmoid", "tensor/silu", "bitnet/gate", "bitnet/rows_gated"],
    msl ["shared/exp", "shared/sigmoid", "tensor/silu", "bitnet/gate", "bitnet/rows_gated"]
);

family_of!(
    GELU, "norm_bitlinear_gelu_tanh",
    wgsl ["shared/exp", "shared/sigmoid", "tensor/gelu_tanh", "bitnet/gate", "bitnet/rows_gated"],
    msl ["shared/exp", "shared/sigmoid", "tensor/gelu_tanh", "bitnet/gate", "bitnet/rows_gated"]
);

pub(super) const KERNELS: &[&Kernel] = &[
    &STORED.int8[0],
    &STORED.int8[1],
    &STORED.int8[2],
    &STORED.int8[3],
    &STORED.half[0],
    &STORED.half[1],
    &RELU2.int8[0],
    &RELU2.int8[1],
    &RELU2.int8[2],
    &RELU2.int8[3],
    &RELU2.half[0],
    &RELU2.half[1],
    &SILU.int8[0],
    &SILU.int8[1],
    &SILU.int8[2],
    &SILU.int8[3],
    &SILU.half[0],
    &SILU.half[1],
    &GELU.int8[0],
    &GELU.int8[1],
    &GELU.int8[2],
    &GELU.int8[3],
    &GELU.half[0],
    &GELU.half[1],
];

/// A kernel, and the rows of the matrix that a workgroup takes.
type Plan = (&'static Kernel, usize);

/// The rows of a matrix that a workgroup takes, of the fewest and the most: as few as keep a large
/// GPU busy, but no fewer, since each workgroup prepares the row once again.
pub(super) fn tile(rows: usize, [fewest, most]: [usize; 2], busy: usize) -> usize {
    let mut tile = fewest;
    while tile < most && rows.div_ceil(tile) > busy {
        tile *= 2;
    }
    tile
}

/// The kernel for this many tokens of `features` times a matrix of `rows`; none where one dispatch
/// after another is better, or where the row does not fit.
fn plan(
    family: &'static Family,
    tokens: usize,
    rows: usize,
    features: usize,
    capabilities: &Capabilities,
    language: ShaderLanguage,
) -> Option<Plan> {
    if tokens > capabilities.tuned(TuningKey::FusedTokens)
        || rows == 0
        || features == 0
        || !features.is_multiple_of(4)
    {
        return None;
    }
    let (kernels, smallest): (&[Kernel], _) = match layout(features, capabilities, language) {
        Layout::Int8 => (&family.int8, 32),
        Layout::F16 if !capabilities.f16_subnormals => return None,
        Layout::F16 => (&family.half, 64),
    };
    let fits = |kernel: &&Kernel| 16 * kernel.sources()[0].constants[0].1 as usize >= features;
    let kernel = kernels.iter().find(fits)?;
    let busy =
        capabilities.tuned(TuningKey::FusedWorkgroups).min(capabilities.max_workgroups as usize);
    let tile = tile(rows, [smallest, kernel.sources()[0].threads() as usize], busy);
    Some((kernel, tile))
}

/// Returns whether [`norm_bitlinear`] and [`norm_bitlinear_gated`] take one dispatch for
/// `tokens` tokens.
pub(crate) fn norm_bitlinear_fuses(context: &Context, tokens: usize, w: &TernaryMatrix) -> bool {
    w.group().is_none()
        && plan(&STORED, tokens, w.rows(), w.columns(), context.capabilities(), context.language())
            .is_some()
}

/// [`norm_bitlinear`] into a tensor of the caller, `[.., n]`; with [`Out::add`] it adds to the
/// residual stream of a transformer.
///
/// # Errors
/// As [`norm_bitlinear`]; [`Error::Shape`] if the output does not fit.
pub(crate) fn norm_bitlinear_into<'a>(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    y: impl Into<Out<'a, f32>>,
) -> Result<()> {
    let y = y.into();
    check("norm_bitlinear", x, norm, w, (&y, false))?;
    if record(encoder, &STORED, x, norm, w, y)? {
        return Ok(());
    }
    let xq = quantized(encoder, x, norm, w)?;
    bitlinear_quantized_into(encoder, &xq, w, y)
}

/// [`norm_bitlinear_gated`] into a tensor of the caller, `[.., n]`, which is overwritten.
///
/// # Errors
/// As [`norm_bitlinear_gated`]; [`Error::Shape`] if the output does not fit.
pub(crate) fn norm_bitlinear_gated_into(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    gate: Gate,
    y: &Tensor<f32>,
) -> Result<()> {
    check("norm_bitlinear_gated", x, norm, w, (&Out::set(y), true))?;
    let family = match gate {
        Gate::Relu2 => &RELU2,
        Gate::Silu => &SILU,
        Gate::GeluTanh => &GELU,
    };
    if record(encoder, family, x, norm, w, y.into())? {
        return Ok(());
    }
    let xq = quantized(encoder, x, norm, w)?;
    let gate_up = bitlinear_quantized::<f32>(encoder, &xq, w)?;
    gate::gate(&gate_up, gate).forward_into(encoder, y)
}

/// Checks input, gain, matrix and output, whose features a gate halves. Returns the number of
/// tokens.
pub(super) fn check(
    op: &'static str,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    (y, gated): (&Out<'_, f32>, bool),
) -> Result<usize> {
    let (tokens, features) = x.shape().as_matrix();
    if features != w.columns() {
        return Err(Error::Shape {
            op,
            what: "x",
            expected: format!("[.., {}]", w.columns()),
            found: x.shape(),
        });
    }
    match norm {
        Some((gain, _)) if gain.shape().dims() != [features] => Err(Error::Shape {
            op,
            what: "gain",
            expected: format!("[{features}]"),
            found: gain.shape(),
        }),
        _ if gated => {
            check_gates(op, w)?;
            y.check(op, tokens, w.rows() / 2)
        }
        _ => y.check(op, tokens, w.rows()),
    }?;
    Ok(tokens)
}

/// Checks that the matrix has as many gate rows as up rows.
fn check_gates(op: &'static str, w: &TernaryMatrix) -> Result<()> {
    if w.rows().is_multiple_of(2) {
        return Ok(());
    }
    Err(Error::Shape {
        op,
        what: "w",
        expected: format!("[2 · n, {}]", w.columns()),
        found: [w.rows(), w.columns()].into(),
    })
}

/// Records the one dispatch, if there is one for it. Shapes have been checked.
fn record(
    encoder: &mut Encoder,
    family: &'static Family,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    y: Out<'_, f32>,
) -> Result<bool> {
    let (tokens, features) = x.shape().as_matrix();
    let context = encoder.context();
    let plan = plan(family, tokens, w.rows(), features, context.capabilities(), context.language());
    let Some((kernel, tile)) = plan.filter(|_| w.group().is_none()) else { return Ok(false) };
    let (gain, eps) = norm.unwrap_or((x, 0.0));
    let (rows, words, normalise) = (w.rows() as u32, w.row_words() as u32, norm.is_some().into());
    let params = Params {
        rows,
        features: features as u32,
        words,
        tile: tile as u32,
        normalise,
        eps,
        add: y.adds().into(),
    };
    let extent = Extent::with_work(
        [w.rows().div_ceil(tile), tokens, 1],
        product(&[w.rows(), tokens, features]),
    );
    encoder.dispatch(kernel, &params, &[&w.codes, &w.scales, x, gain, y.tensor()], extent)?;
    Ok(true)
}

/// The dispatch before BitLinear, where there are two.
fn quantized(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
) -> Result<QuantizedActivations> {
    let (tokens, features) = x.shape().as_matrix();
    let layout =
        if w.group().is_some() { Layout::Int8 } else { layout_on(features, encoder.context()) };
    let xq = QuantizedActivations::uninit(encoder.context(), tokens, features, layout)?;
    match norm {
        Some((gain, eps)) => rms_norm_quantize_into(encoder, x, gain, eps, &xq)?,
        None => quantize_activations_into(encoder, x, &xq)?,
    }
    Ok(xq)
}

/// Checks that there is a gain for every column.
pub(super) fn check_gain(norm: Norm<'_, [f32]>, w: &PackedTernary) -> Result<()> {
    match norm {
        Some((gain, _)) if gain.len() != w.columns() => {
            Err(Error::Length { shape: [w.columns()].into(), found: gain.len() })
        }
        _ => Ok(()),
    }
}

/// Applies a gate to products with gates and ups, if there is one.
///
/// # Errors
/// [`Error::Length`] for a gate of an odd number of rows.
pub(super) fn gated(y: Vec<f32>, w: &PackedTernary, gate: Option<Gate>) -> Result<Vec<f32>> {
    let Some(kind) = gate else { return Ok(y) };
    if !w.rows().is_multiple_of(2) {
        return Err(Error::Length { shape: [w.rows() / 2, 2].into(), found: w.rows() });
    }
    gate::host::gate(&y, w.rows() / 2, kind)
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::bitnet::{
        bitlinear::reference::bitlinear_quantized,
        quantize_activations::host::quantize_activations,
        rms_norm_quantize::host::rms_norm_quantize,
    };

    /// CPU reference of [`BitLinear`](crate::bitnet::BitLinear) with a norm and a gate, if they are
    /// given: bit-identical but for SiLU and GELU. `x` is `[tokens, w.columns()]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows or the gain has another length, and for a gate of
    /// an odd number of rows; [`Error::Invalid`] for too many features.
    pub fn norm_bitlinear(
        x: &[f32],
        tokens: usize,
        norm: Norm<'_, [f32]>,
        w: &PackedTernary,
        gate: Option<Gate>,
    ) -> Result<Vec<f32>> {
        check_gain(norm, w)?;
        let xq = match norm {
            Some((gain, eps)) => rms_norm_quantize(x, tokens, gain, eps)?,
            None => quantize_activations(x, tokens, w.columns())?,
        };
        gated(bitlinear_quantized(&xq, w)?, w, gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ShaderLanguage::{Msl, Wgsl};

    fn chosen(
        tokens: usize,
        rows: usize,
        features: usize,
        capabilities: &Capabilities,
        language: ShaderLanguage,
    ) -> Option<(&str, usize)> {
        plan(&STORED, tokens, rows, features, capabilities, language)
            .map(|(kernel, tile)| (kernel.name, tile))
    }

    #[test]
    fn plans() {
        let (mut apple, other) = (Capabilities::example(true), Capabilities::example(false));
        // BitNet b1.58 2B4T: q + k + v, o, gate + up, down.
        assert_eq!(chosen(1, 3840, 2560, &other, Wgsl), Some(("norm_bitlinear_int8_3", 32)));
        assert_eq!(chosen(1, 2560, 2560, &other, Wgsl), Some(("norm_bitlinear_int8_3", 32)));
        assert_eq!(chosen(1, 13_824, 2560, &other, Wgsl), Some(("norm_bitlinear_int8_3", 64)));
        assert_eq!(chosen(1, 2560, 6912, &other, Wgsl), Some(("norm_bitlinear_int8_7", 32)));
        assert_eq!(chosen(1, 2560, 4096, &other, Wgsl), Some(("norm_bitlinear_int8_4", 32)));
        assert_eq!(chosen(1, 2560, 2560, &apple, Msl), Some(("norm_bitlinear_f16", 64)));
        assert_eq!(chosen(1, 2560, 6912, &apple, Msl), Some(("norm_bitlinear_f16_wide", 64)));
        // What does not fit takes two dispatches.
        assert_eq!(chosen(3, 2560, 2560, &other, Wgsl), None);
        assert_eq!(chosen(1, 2560, 8196, &other, Wgsl), None);
        assert_eq!(chosen(1, 2560, 7108, &apple, Msl), None);
        assert_eq!(chosen(1, 2560, 2562, &other, Wgsl), None);
        assert_eq!(chosen(1, 0, 2560, &other, Wgsl), None);
        apple.f16_subnormals = false;
        assert_eq!(chosen(1, 2560, 2560, &apple, Wgsl), None);
        // Every workgroup would prepare the row once again, on one processor.
        (apple.f16_subnormals, apple.software) = (true, true);
        assert_eq!(chosen(1, 2560, 2560, &apple, Wgsl), None);
    }
}
