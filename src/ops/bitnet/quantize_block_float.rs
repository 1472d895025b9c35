//! quantize_block_float: activations in block floating point, so that sums of ternary products are
//! exact. (Wilkinson 1963, *Rounding Errors in Algebraic Processes*, has block floating point.)

use super::{
    activations::QuantizedActivations,
    bitlinear_tensor_cores::{INT8_CORE_8, INT8_CORE_16},
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, Source, Work},
    },
    params,
    tuning::TuningKey,
    weights::ternary::layout::CODES_PER_WORD,
};

params! { pub(super) struct Params { pub tokens: u32, pub features: u32, pub blocks: u32, pub quads: u32, pub order: u32 } }

/// Declares the kernels that convert to block floating point, one for products in floats and one
/// for products of bytes. Outputs are bound first. The last part is named by its file.
macro_rules! block_float_kernels {
    ($name:literal, $entry:literal in $last:literal, $params:ty, $inputs:expr, $source:ident [$($part:tt),*]) => {
        [
            $crate::kernel::declaration::Kernel::trusted(
                $name,
                <$params>::FIELDS,
                $inputs,
                &[$source($crate::wgsl!["shared/flat", $($part,)* "bitnet/block_unit", "bitnet/block_float", "bitnet/block_float_store", $last], 4)],
            )
            .entry($entry)
            .flat(),
            $crate::kernel::declaration::Kernel::trusted(
                concat!($name, "_bytes"),
                <$params>::FIELDS,
                $inputs,
                &[$source(
                    $crate::wgsl![
                        "shared/flat", $($part,)* "bitnet/block_unit", "bitnet/block_float", "bitnet/byte_planes", "bitnet/block_float_store_bytes", $last
                    ],
                    8,
                )],
            )
            .entry($entry)
            .flat(),
        ]
    };
}
pub(super) use block_float_kernels;

/// A kernel for products in floats, then one for products of bytes.
pub(super) type BlockFloatKernels = [Kernel; 2];

/// With this many bytes of workgroup memory a thread.
pub(super) const fn quads(parts: &'static [Part], bytes: u32) -> Source {
    Source::wgsl(parts)
        .workgroup_size([256, 1, 1])
        .workgroup_bytes(256 * bytes)
        .work(Work::new(4, "elements", 32, 12))
}

static QUANTIZE_BLOCK_FLOAT: BlockFloatKernels = block_float_kernels!(
    "quantize_block_float", "quantize_block_float" in "bitnet/quantize_block_float", Params,
    &[read_write("y", U32), read_write("units", F32), read("x", Float("X"))],
    quads ["shared/ids", "bitnet/block_float_plain"]
);

/// Of codes of eight bits, which stay what they are.
static BLOCK_FLOAT_CODES: BlockFloatKernels = block_float_kernels!(
    "block_float_codes", "quantize_block_float" in "bitnet/quantize_block_float", Params,
    &[read_write("y", U32), read_write("units", F32), read("x", U32)],
    quads ["shared/ids", "bitnet/block_float_codes"]
);

pub(super) const KERNELS: &[&Kernel] = &[
    &QUANTIZE_BLOCK_FLOAT[0],
    &QUANTIZE_BLOCK_FLOAT[1],
    &BLOCK_FLOAT_CODES[0],
    &BLOCK_FLOAT_CODES[1],
];

/// Columns of a block at most: with fifteen bits and a sign each, their sum has twenty-two.
pub(super) const BLOCK: usize = 128;

/// Number of columns of a block for a matrix with scales per `group` of columns, or without: 128,
/// or the largest power of two that divides the group, if that is less.
pub(crate) fn block_columns(group: Option<usize>) -> usize {
    // The greatest common divisor, of a power of two.
    group
        .map_or(BLOCK, |group| (1 << group.trailing_zeros().min(BLOCK.trailing_zeros())).min(BLOCK))
}

/// The layout of block floating point activations in memory: those of
/// wgsl/bitnet/block_float_store.wgsl, as it numbers them, and that of
/// wgsl/bitnet/block_float_store_bytes.wgsl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockFloatLayout {
    /// Floats, a block's quads by place.
    ByPlace = 1,
    /// Floats, in order.
    InOrder = 2,
    /// Two planes of bytes.
    Bytes = 3,
    /// Memory as of `Bytes`, for products on tensor cores.
    TensorCores = 4,
}

impl BlockFloatLayout {
    pub(super) fn is_bytes(self) -> bool {
        matches!(self, Self::Bytes | Self::TensorCores)
    }
}

/// Activations on the GPU in block floating point: blocks of columns with a unit each, and
/// multiples of it of up to 15 bits and a sign.
#[derive(Clone, Debug)]
pub struct BlockFloatActivations {
    pub(super) layout: BlockFloatLayout,
    /// `[tokens, blocks, block]` floats, or `[tokens, 2, blocks, block / 4]` words of bytes, in the
    /// order that `layout` says.
    pub(super) values: Tensor<u32>,
    /// `[tokens, blocks]` of the unit, for bytes with the sum of the block.
    pub(super) units: Tensor<f32>,
    block: usize,
    tokens: usize,
    features: usize,
}

impl BlockFloatActivations {
    /// Activations that an op will write, and can write again, for matrices with scales per `group`
    /// of columns, or without.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::Invalid`] for a group that is not a multiple of 16.
    pub fn uninit(
        context: &Context,
        tokens: usize,
        features: usize,
        group: Option<usize>,
    ) -> Result<Self> {
        Self::build(context, [tokens, features], group, |_, shape| Tensor::uninit(context, shape))
    }

    /// [`uninit`](Self::uninit) in a layout, however many tokens there are.
    ///
    /// # Errors
    /// As [`uninit`](Self::uninit).
    pub(super) fn in_layout(
        context: &Context,
        [tokens, features]: [usize; 2],
        group: Option<usize>,
        layout: BlockFloatLayout,
    ) -> Result<Self> {
        let block = block_columns(group);
        check_block(block, group)?;
        Self::of_memory([tokens, features, block], layout, |_, shape| {
            Tensor::uninit(context, shape)
        })
    }

    /// In memory of the encoder's, until the next op that takes it.
    pub(super) fn scratch(
        encoder: &mut Encoder,
        tokens: usize,
        features: usize,
        group: Option<usize>,
    ) -> Result<Self> {
        let context = encoder.context().clone();
        Self::build(&context, [tokens, features], group, |slot, shape| encoder.scratch(slot, shape))
    }

    /// Of values, and of units, by what makes their memory.
    fn build(
        context: &Context,
        [tokens, features]: [usize; 2],
        group: Option<usize>,
        memory: impl FnMut(usize, [usize; 2]) -> Result<Tensor<u32>>,
    ) -> Result<Self> {
        let block = block_columns(group);
        check_block(block, group)?;
        let layout = layout(tokens, features, block, context);
        Self::of_memory([tokens, features, block], layout, memory)
    }

    fn of_memory(
        [tokens, features, block]: [usize; 3],
        layout: BlockFloatLayout,
        mut memory: impl FnMut(usize, [usize; 2]) -> Result<Tensor<u32>>,
    ) -> Result<Self> {
        let blocks = features.div_ceil(block);
        let (words, numbers) = if layout.is_bytes() { (block / 2, 2) } else { (block, 1) };
        Ok(Self {
            layout,
            values: memory(0, [tokens, blocks * words])?,
            units: memory(1, [tokens, blocks * numbers])?.cast(),
            block,
            tokens,
            features,
        })
    }

    /// Checks the numbers of tokens and features.
    pub(super) fn check(&self, op: &'static str, tokens: usize, features: usize) -> Result<()> {
        if (self.tokens, self.features) == (tokens, features) {
            return Ok(());
        }
        let found = [self.tokens, self.features].into();
        Err(Error::Shape {
            op,
            what: "the output",
            expected: format!("[{tokens}, {features}]"),
            found,
        })
    }

    /// The kernel for this layout.
    pub(super) fn kernel(&self, kernels: &'static BlockFloatKernels) -> &'static Kernel {
        &kernels[usize::from(self.layout.is_bytes())]
    }

    /// Blocks of a row, quads of a block, and the number of the layout.
    pub(super) fn numbers(&self) -> [u32; 3] {
        [self.features.div_ceil(self.block) as u32, self.block as u32 / 4, self.layout as u32]
    }

    /// What a kernel of a thread for each quad takes, and how many there are.
    pub(super) fn by_quads(&self) -> (Params, [usize; 3]) {
        let [blocks, quads, order] = self.numbers();
        let params = Params {
            tokens: self.tokens as u32,
            features: self.features as u32,
            blocks,
            quads,
            order,
        };
        (params, [self.tokens * (blocks * quads) as usize, 1, 1])
    }

    /// Rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Columns.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Columns that share a unit.
    pub fn block(&self) -> usize {
        self.block
    }
}

/// Refuses blocks that are not whole words of codes.
fn check_block(block: usize, group: Option<usize>) -> Result<()> {
    if block >= CODES_PER_WORD {
        return Ok(());
    }
    let what = format!(
        "groups of {} columns; block floating point accepts multiples of {CODES_PER_WORD}",
        group.unwrap_or_default()
    );
    Err(Error::Invalid { op: "quantize_block_float", what })
}

/// The layout of what the best kernel for this many tokens takes. All of them are bit-identical.
pub(super) fn layout(
    tokens: usize,
    features: usize,
    block: usize,
    context: &Context,
) -> BlockFloatLayout {
    let capabilities = context.capabilities();
    let on_tensor_cores =
        [INT8_CORE_16, INT8_CORE_8].iter().any(|core| capabilities.tensor_cores.contains(core));
    // A turn of tiles is 32 columns, and loads the first without asking. On tensor cores a shorter
    // block takes as long as one of 128.
    let many = |choice| tokens > capabilities.tuned(choice) && block >= 32 && features > 0;
    if on_tensor_cores && !capabilities.software && many(TuningKey::BlockFloatTensorCoreTokens) {
        BlockFloatLayout::TensorCores
    } else if many(TuningKey::BlockFloatTileTokens) {
        BlockFloatLayout::InOrder
    } else if capabilities.fast_packed_dot
        && features > 0
        && block == BLOCK
        && features.is_multiple_of(4 * CODES_PER_WORD)
    {
        // A lane loads four words of whole ones.
        BlockFloatLayout::Bytes
    } else {
        BlockFloatLayout::ByPlace
    }
}

/// Records the quantizer into activations of the caller.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub(crate) fn quantize_block_float_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    quantized: &BlockFloatActivations,
) -> Result<()> {
    let (tokens, features) = x.shape().as_matrix();
    quantized.check("quantize_block_float", tokens, features)?;
    let (params, extent) = quantized.by_quads();
    encoder.dispatch(
        quantized.kernel(&QUANTIZE_BLOCK_FLOAT),
        &params,
        &[&quantized.values, &quantized.units, x],
        extent,
    )
}

/// The codes of `x`, in the layout `Int8`, without their scales, for matrices with per-group
/// scales. Eight bits are not rounded. What comes of it is in memory of the encoder's, until the
/// next op that takes some.
pub(super) fn block_float_codes(
    encoder: &mut Encoder,
    x: &QuantizedActivations,
    group: Option<usize>,
) -> Result<BlockFloatActivations> {
    let quantized = BlockFloatActivations::scratch(encoder, x.tokens(), x.features(), group)?;
    block_float_codes_into(encoder, x, &quantized)?;
    Ok(quantized)
}

/// [`block_float_codes`] into activations of the caller, of as many rows and columns.
pub(super) fn block_float_codes_into(
    encoder: &mut Encoder,
    x: &QuantizedActivations,
    quantized: &BlockFloatActivations,
) -> Result<()> {
    quantized.check("quantize_block_float", x.tokens(), x.features())?;
    let (params, extent) = quantized.by_quads();
    encoder.dispatch(
        quantized.kernel(&BLOCK_FLOAT_CODES),
        &params,
        &[&quantized.values, &quantized.units, &x.codes],
        extent,
    )
}

/// Plain loops over a slice, so that a compiler makes vectors of them.
fn quantize_block(block: &mut [f32]) {
    let largest = block.iter().fold(0, |largest: u32, v| largest.max(v.to_bits() & 0x7fff_ffff));
    let exponent = ((largest + 0x2_0000) >> 23).max(32);
    let (unit, inverse) =
        (f32::from_bits((exponent - 14) << 23), f32::from_bits((268 - exponent) << 23));
    // 1.5·2^23 leaves no bits for fractions: as `round_ties_even`, which is a call where a
    // processor's oldest instructions are compiled for.
    block.iter_mut().for_each(|v| *v = (*v * inverse + 12_582_912.0 - 12_582_912.0) * unit);
}

pub(crate) mod host {
    use super::*;

    /// CPU reference of
    /// [`ActivationQuantizer::block_float`](crate::bitnet::ActivationQuantizer::block_float), in
    /// place: bit-identical. `x` is rows of `features`.
    ///
    /// # Errors
    /// [`Error::Length`] if it is not whole rows.
    pub fn quantize_block_float(
        x: &mut [f32],
        features: usize,
        group: Option<usize>,
    ) -> Result<()> {
        let features = features.max(1);
        if !x.len().is_multiple_of(features) {
            return Err(Error::Length {
                shape: [x.len() / features, features].into(),
                found: x.len(),
            });
        }
        x.chunks_exact_mut(features)
            .flat_map(|row| row.chunks_mut(block_columns(group)))
            .for_each(quantize_block);
        Ok(())
    }
}
