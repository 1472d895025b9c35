//! RMSNorm, block_float_kernels to block floating point and BitLinear in one dispatch, for few tokens: what
//! decoding is made of where activations are floats. Bit-identical to
//! `rms_norm_block_float_into` and
//! [`bitlinear_block_float`](super::bitlinear_block_float()) one after another.

use super::{
    bitlinear_block_float::{bitlinear_block_float, bitlinear_block_float_into},
    gate::{self, Gate},
    gate_quantize::Norm,
    norm_bitlinear::{check, check_gain, gated, tile},
    quantize_block_float::{
        BLOCK, BlockFloatActivations, BlockFloatLayout, block_columns, layout,
        quantize_block_float_into,
    },
    rms_norm_block_float::rms_norm_block_float_into,
};
use crate::{
    error::Result,
    gpu::{
        capabilities::Capabilities,
        context::Context,
        encoder::Encoder,
        out::Out,
        recording::{Extent, product},
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{CELLS, EXACT, Part, REDUCE, Source, Work},
    },
    msl, params,
    tuning::TuningKey,
    weights::ternary::{matrix::TernaryMatrix, packed::PackedTernary},
    wgsl,
};

params! {
    /// Of many rows.
    struct LargeParams { rows: u32, features: u32, words: u32, tile: u32, span: u32, blocks: u32, groups: u32, group_blocks: u32, normalise: u32, eps: f32, add: u32 }
}

params! {
    struct Params { rows: u32, features: u32, words: u32, tile: u32, blocks: u32, groups: u32, group_blocks: u32, normalise: u32, eps: f32, add: u32 }
}

const BINDINGS: &[Binding] = &[
    read("codes", U32),
    read("w_scale", F32),
    read("source", F32),
    read("gain", F32),
    read_write("y", F32),
];

const PARAMS_MSL: Part = Part::new(
    "Params",
    "struct Params { uint rows, features, words, tile, blocks, groups, group_blocks, normalise; float eps; uint add; };\n",
);

/// Threads of a workgroup, each of which prepares sixteen columns of a chunk.
const THREADS: u32 = 128;
/// The fewest rows of a workgroup, which makes sixteen at a time: of packed products, and of those
/// in floats, which are for GPUs of fewer cores.
const FEWEST: [usize; 2] = [16, 64];
/// The most.
const MOST: u32 = 64;

/// A turn is a quad of words of four rows. The tile is given at run time, so the grid counts
/// workgroups.
const fn source(source: Source, bytes: u32, work: Work) -> Source {
    source
        .workgroup_size([THREADS, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("ROWS", MOST)])
        .workgroup_bytes(bytes)
        .work(work)
}

/// In WGSL, with this many bytes of workgroup memory for a chunk.
const fn chunks(parts: &'static [Part], bytes: u32, work: Work) -> Source {
    const BLOCKS: u32 = THREADS / 8;
    // Of the parts that are shared.
    const CELLS: u32 = 4 * THREADS + 32;
    source(Source::wgsl(parts), bytes + 4 * MOST * (BLOCKS + 1) + 4 * THREADS + CELLS, work)
}

/// In two planes of bytes.
const fn packed(parts: &'static [Part]) -> Source {
    chunks(
        parts,
        2 * 16 * (THREADS + THREADS / 8) + 8 * THREADS / 8,
        Work::new(2 * 256, "products", 64, 2 * 2 * 256),
    )
}

/// Threads of a workgroup of large matrices.
const LARGE_THREADS: u32 = 512;
/// Blocks of one of its chunks.
const LARGE_BLOCKS: u32 = 48;
/// Rows that it makes at a time.
const SPAN: usize = 48;
/// How often at most.
const SPANS: usize = 8;

/// In two planes of bytes, with more threads that share what is prepared.
const fn large(parts: &'static [Part]) -> Source {
    const CHUNK: u32 = LARGE_BLOCKS * (2 * 128 + 8);
    const PRODUCTS: u32 = 4 * SPAN as u32 * (LARGE_BLOCKS + 1);
    // Of the parts that are shared.
    const CELLS: u32 = 4 * LARGE_THREADS + 32;
    Source::wgsl(parts)
        .workgroup_size([LARGE_THREADS, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("BLOCKS", LARGE_BLOCKS), ("ROWS", SPAN as u32)])
        .workgroup_bytes(CHUNK + PRODUCTS + 4 * LARGE_THREADS + CELLS)
        .work(Work::new(2 * 256, "products", 64, 2 * 2 * 256))
}

/// In floats, of which a turn is a word of four rows.
const fn floats(parts: &'static [Part]) -> Source {
    chunks(parts, 4 * 16 * THREADS, Work::new(64, "products", 16, 2 * 64))
}

const fn floats_msl(parts: &'static [Part]) -> Source {
    source(
        Source::msl(parts),
        4 * 64 + 4 * 16 * THREADS + 4 * 4 * 4 * 17 + 4 * MOST,
        Work::new(256, "products", 64, 2 * 256),
    )
}

/// Declares kernels for packed products, for floats, and for packed products of large matrices, by
/// the parts that say what becomes of a product, which have the same names in both languages.
macro_rules! kernels_of {
    ($name:literal, [$($part:tt),*]) => {
        [
            Kernel::trusted(
                concat!("norm_bitlinear_block_float_packed", $name),
                Params::FIELDS,
                BINDINGS,
                &[packed(wgsl![
                    REDUCE, CELLS, EXACT, "shared/rms", "bitnet/block_unit", "bitnet/byte_planes", "bitnet/row_quads", "bitnet/block_float_turn",
                    "bitnet/block_float_rows", "bitnet/chunk_bytes", $($part,)* "bitnet/norm_bitlinear_block_float"
                ])],
            )
            .entry("norm_bitlinear_block_float"),
            Kernel::trusted(
                concat!("norm_bitlinear_block_float", $name),
                Params::FIELDS,
                BINDINGS,
                &[
                    floats(wgsl![
                        REDUCE, CELLS, EXACT, "shared/rms", "bitnet/block_unit", "bitnet/row_quads", "bitnet/block_float_turn", "tensor/matmul_block",
                        "bitnet/bitlinear_float_word", "bitnet/chunk_floats", $($part,)* "bitnet/norm_bitlinear_block_float"
                    ]),
                    floats_msl(msl![
                        "shared/prelude", PARAMS_MSL, "shared/exact", "shared/reduce", "shared/rms", "bitnet/bitlinear_float_word", $($part,)*
                        "bitnet/norm_bitlinear_block_float"
                    ]),
                ],
            )
            .entry("norm_bitlinear_block_float"),
            Kernel::trusted(
                concat!("norm_bitlinear_block_float_packed_large", $name),
                LargeParams::FIELDS,
                BINDINGS,
                &[large(wgsl![
                    REDUCE, CELLS, EXACT, "shared/rms", "bitnet/block_unit", "bitnet/byte_planes", "bitnet/row_quads", "bitnet/block_float_turn",
                    "bitnet/block_float_rows", $($part,)* "bitnet/norm_bitlinear_block_float_large"
                ])],
            )
            .entry("norm_bitlinear_block_float_large"),
        ]
    };
}

/// Indexed by [`Form`].
static STORED: [Kernel; 3] = kernels_of!("", ["bitnet/rows_stored"]);
static RELU2: [Kernel; 3] =
    kernels_of!("_relu2", ["tensor/relu2", "bitnet/gate", "bitnet/rows_gated"]);
static SILU: [Kernel; 3] = kernels_of!(
    "_silu",
    ["shared/exp", "shared/sigmoid", "tensor/silu", "bitnet/gate", "bitnet/rows_gated"]
);
static GELU: [Kernel; 3] = kernels_of!(
    "_gelu_tanh",
    ["shared/exp", "shared/sigmoid", "tensor/gelu_tanh", "bitnet/gate", "bitnet/rows_gated"]
);

pub(super) const KERNELS: &[&Kernel] = &[
    &STORED[0], &STORED[1], &STORED[2], &RELU2[0], &RELU2[1], &RELU2[2], &SILU[0], &SILU[1],
    &SILU[2], &GELU[0], &GELU[1], &GELU[2],
];

/// Which kernel of several makes one dispatch.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Packed,
    Floats,
    Large,
}

/// Returns whether [`norm_bitlinear_block_float_into`] and
/// [`norm_bitlinear_block_float_gated_into`] take one dispatch for `tokens` tokens.
pub(crate) fn norm_bitlinear_block_float_fuses(
    context: &Context,
    tokens: usize,
    w: &TernaryMatrix,
) -> bool {
    form(context, tokens, w).is_some()
}

/// Which kernel makes one dispatch for this many tokens of a matrix, if one does.
fn form(context: &Context, tokens: usize, w: &TernaryMatrix) -> Option<Form> {
    let capabilities = context.capabilities();
    let block = block_columns(w.group());
    // A lane has half of a block.
    let whole = block == BLOCK && w.columns() > 0 && w.columns().is_multiple_of(BLOCK / 2);
    if tokens > capabilities.tuned(TuningKey::FusedBlockFloatTokens) || !whole || w.rows() == 0 {
        return None;
    }
    let (weights, source) = (w.rows() * w.columns(), &STORED[Form::Large as usize].sources()[0]);
    let large = weights >= capabilities.tuned(TuningKey::FusedBlockFloatLargeWeights)
        && capabilities.max_workgroup_threads >= LARGE_THREADS
        && capabilities.max_workgroup_bytes >= source.workgroup_bytes;
    match layout(tokens, w.columns(), block, context) {
        BlockFloatLayout::Bytes if large => Some(Form::Large),
        BlockFloatLayout::Bytes => Some(Form::Packed),
        BlockFloatLayout::ByPlace => Some(Form::Floats),
        _ => None,
    }
}

/// `x` `[.., k]`, normalized by every row where `norm` (gain `[k]` and eps) is given, and in block
/// floating point, times `w` `[n, k]`, into a tensor of the caller, `[.., n]`; with [`Out::add`] it
/// adds to the residual stream of a transformer. For models whose activations are not quantized.
///
/// The result is bit-identical to that of the separate ops: the conversion of the activations, then
/// [`bitlinear_block_float`](super::bitlinear_block_float()). These run where one dispatch gains
/// nothing: for more than a few tokens, on software adapters, for matrices whose blocks are not of
/// 128 columns, and for those whose rows are not a multiple of four words.
///
/// # Errors
/// [`Error::Shape`] if `x`, the gain, `w` and the output do not fit.
pub(crate) fn norm_bitlinear_block_float_into<'a>(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    y: impl Into<Out<'a, f32>>,
) -> Result<()> {
    let y = y.into();
    let tokens = check("norm_bitlinear_block_float", x, norm, w, (&y, false))?;
    if let Some(form) = form(encoder.context(), tokens, w) {
        return record(encoder, (&STORED, form), x, norm, w, y);
    }
    let quantized = quantized(encoder, x, norm, w)?;
    bitlinear_block_float_into(encoder, &quantized, w, y)
}

/// [`norm_bitlinear_block_float_into`] by a matrix of `n` gates, then as many ups, and act(gate)·up
/// of them: `[.., n]`, which is overwritten.
///
/// With relu² the bits of [`gate`](gate::gate()) of the product; with SiLU and GELU within its
/// bounds.
///
/// # Errors
/// As [`norm_bitlinear_block_float_into`]; [`Error::Shape`] for a matrix of an odd number of rows.
pub(crate) fn norm_bitlinear_block_float_gated_into(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    gate: Gate,
    y: &Tensor<f32>,
) -> Result<()> {
    let (op, out) = ("norm_bitlinear_block_float_gated", Out::set(y));
    let tokens = check(op, x, norm, w, (&out, true))?;
    if let Some(form) = form(encoder.context(), tokens, w) {
        let kernels = match gate {
            Gate::Relu2 => &RELU2,
            Gate::Silu => &SILU,
            Gate::GeluTanh => &GELU,
        };
        return record(encoder, (kernels, form), x, norm, w, y.into());
    }
    let quantized = quantized(encoder, x, norm, w)?;
    let gate_up = bitlinear_block_float(encoder, &quantized, w)?;
    gate::gate(&gate_up, gate).forward_into(encoder, y)
}

/// The rows of a matrix that a workgroup takes.
fn rows_of_workgroup(rows: usize, form: Form, capabilities: &Capabilities) -> usize {
    // Workgroups of the choice have twice as many threads.
    let busy = capabilities
        .tuned(TuningKey::FusedWorkgroups)
        .saturating_mul(2)
        .min(capabilities.max_workgroups as usize);
    tile(rows, [FEWEST[form as usize], MOST as usize], busy)
}

/// The rows of a large matrix that a workgroup takes at a time, and in all.
fn spans_of_workgroup(rows: usize, capabilities: &Capabilities) -> (usize, usize) {
    // Workgroups of the choice have half as many threads.
    let busy = (capabilities.tuned(TuningKey::FusedWorkgroups) / 2).max(1);
    let rows = rows.div_ceil(busy).min(SPANS * SPAN);
    let spans = rows.div_ceil(SPAN);
    // Teams have four.
    let span = rows.div_ceil(spans).next_multiple_of(4);
    (span, spans * span)
}

/// Records the one dispatch. Shapes have been checked.
fn record(
    encoder: &mut Encoder,
    (kernels, form): (&'static [Kernel; 3], Form),
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    y: Out<'_, f32>,
) -> Result<()> {
    let ((tokens, features), block) = (x.shape().as_matrix(), block_columns(w.group()));
    let blocks = features.div_ceil(block);
    let (gain, eps) = norm.unwrap_or((x, 0.0));
    let capabilities = encoder.context().capabilities();
    let (span, tile) = match form {
        Form::Large => spans_of_workgroup(w.rows(), capabilities),
        _ => (0, rows_of_workgroup(w.rows(), form, capabilities)),
    };
    let params = Params {
        rows: w.rows() as u32,
        features: features as u32,
        words: w.row_words() as u32,
        tile: tile as u32,
        blocks: blocks as u32,
        groups: (w.scales.len() / w.rows()) as u32,
        group_blocks: w.group().map_or(blocks, |size| size / block) as u32,
        normalise: norm.is_some().into(),
        eps,
        add: y.adds().into(),
    };
    let extent = Extent::with_work(
        [w.rows().div_ceil(tile), tokens, 1],
        product(&[w.rows(), tokens, w.columns()]),
    );
    let kernel = &kernels[form as usize];
    let tensors: [&dyn Bind; 5] = [&w.codes, &w.scales, x, gain, y.tensor()];
    if form != Form::Large {
        return encoder.dispatch(kernel, &params, &tensors, extent);
    }
    let Params { rows, features, words, tile, blocks, groups, group_blocks, normalise, eps, add } =
        params;
    let params = LargeParams {
        rows,
        features,
        words,
        tile,
        span: span as u32,
        blocks,
        groups,
        group_blocks,
        normalise,
        eps,
        add,
    };
    encoder.dispatch(kernel, &params, &tensors, extent)
}

/// The dispatch before BitLinear, where there are two.
fn quantized(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
) -> Result<BlockFloatActivations> {
    let (tokens, features) = x.shape().as_matrix();
    let quantized = BlockFloatActivations::uninit(encoder.context(), tokens, features, w.group())?;
    match norm {
        Some((gain, eps)) => rms_norm_block_float_into(encoder, x, 0, gain, eps, &quantized)?,
        None => quantize_block_float_into(encoder, x, &quantized)?,
    }
    Ok(quantized)
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::bitnet::{
        bitlinear_block_float::reference::bitlinear_block_float,
        quantize_block_float::host::quantize_block_float,
        rms_norm_block_float::reference::rms_norm_block_float,
    };

    /// CPU reference of [`BitLinear`](crate::bitnet::BitLinear) with block floating point, and with
    /// a norm and a gate, if they are given: bit-identical but for SiLU and GELU. `x` is whole rows
    /// of `w.columns()`.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) if `x` is not whole rows or the gain has another
    /// length, and for a gate of an odd number of rows.
    pub fn norm_bitlinear_block_float(
        x: &[f32],
        norm: Norm<'_, [f32]>,
        w: &PackedTernary,
        gate: Option<Gate>,
    ) -> Result<Vec<f32>> {
        check_gain(norm, w)?;
        let quantized = match norm {
            Some((gain, eps)) => rms_norm_block_float(x, gain, eps, w.group())?,
            None => {
                let mut quantized = x.to_vec();
                quantize_block_float(&mut quantized, w.columns(), w.group())?;
                quantized
            }
        };
        let products = quantized
            .chunks(w.columns().max(1))
            .map(|row| bitlinear_block_float(row, w))
            .collect::<Result<Vec<_>>>()?;
        gated(products.concat(), w, gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_workgroups_are_those_that_were_measured() {
        let gpu = Capabilities::example(false);
        // Ternary-Bonsai-1.7B and 8B: q + k + v, o and down, gate + up; then as many as there may
        // be.
        let matrices = [
            (4096, 16),
            (2048, 16),
            (12_288, 32),
            (6144, 16),
            (24_576, 64),
            (1 << 20, 64),
            (1, 16),
        ];
        for (rows, expected) in matrices {
            assert_eq!(rows_of_workgroup(rows, Form::Packed, &gpu), expected, "{rows}");
            // As counted for Apple's GPUs.
            assert_eq!(rows_of_workgroup(rows, Form::Floats, &gpu), 64, "{rows}");
        }
        // Ternary-Bonsai-27B: q + k + v + z, o and down, gate + up; then as many as there may be.
        let large = [
            (16_384, (44, 132)),
            (5120, (40, 40)),
            (34_816, (48, 288)),
            (1 << 20, (48, 384)),
            (1, (4, 4)),
        ];
        for (rows, expected) in large {
            assert_eq!(spans_of_workgroup(rows, &gpu), expected, "{rows}");
        }
    }
}
