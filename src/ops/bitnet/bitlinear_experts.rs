//! BitLinear with a matrix for each row: the experts of a mixture. Weights of matrices that no row
//! uses are not read.

use super::{
    activations::{Layout, QuantizedActivations},
    bitlinear_block_float::{PLACES, THREADS, gemv, lanes},
    quantize_activations::quantize_activations_into,
    quantize_block_float::{
        BlockFloatActivations, BlockFloatLayout, block_columns, block_float_codes_into,
        quantize_block_float_into,
    },
    sort_experts::{Params, SortedExperts, tile_product},
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{
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
        source::{EXACT, Source},
    },
    msl,
    ops::forward::forward,
    params,
    shape::Shape,
    weights::ternary::{layout::CODES_PER_WORD, matrix::TernaryMatrix},
    wgsl,
};
use std::marker::PhantomData;

params! { struct SumParams { tokens: u32, used: u32, columns: u32, add: u32 } }

const OP: &str = "bitlinear_experts";

const BINDINGS: &[Binding] = &[
    read("x", F32),
    read("codes", U32),
    read("w_scale", F32),
    read_write("y", Float("Y")),
    read("chosen", U32),
    read("x_scale", F32),
];

/// Kernels of one kind of activations, by the parts that scale: loading a word of codes at a time,
/// and four.
macro_rules! experts {
    ($name:literal, $bindings:expr, wgsl $wgsl:tt, msl $msl:tt) => {
        [
            experts!($name, $bindings, "bitnet/block_float_words", 1, $wgsl, $msl),
            experts!(concat!($name, "_quads"), $bindings, "bitnet/block_float_quads", 4, $wgsl, $msl),
        ]
    };
    ($name:expr, $bindings:expr, $codes:literal, $words:literal, [$($wgsl:tt),+], [$($msl:tt),+]) => {
        Kernel::trusted(
            $name,
            Params::FIELDS,
            $bindings,
            &[
                gemv(
                    Source::wgsl(wgsl![
                        "shared/ids",
                        "tensor/matmul_block",
                        "bitnet/bitlinear_float_word",
                        $codes,
                        "bitnet/matrix_of_expert",
                        $($wgsl),+,
                        "bitnet/bitlinear_block_float_gemv"
                    ]),
                    1,
                    1,
                )
                .constants(&[("PLACES", PLACES)]),
                gemv(
                    Source::msl(msl![
                        "shared/prelude",
                        "bitnet/bitlinear_float_word",
                        "bitnet/matrix_of_expert",
                        $($msl),+,
                        "bitnet/bitlinear_block_float_gemv"
                    ]),
                    1,
                    $words,
                )
                .constants(&[("PLACES", PLACES), ("STEP", $words)]),
            ],
        )
        .entry("bitlinear_block_float_gemv")
    };
}

static OF_FLOATS: [Kernel; 2] = experts!(
    "bitlinear_experts",
    BINDINGS.split_at(5).0,
    wgsl["bitnet/expert_of_floats"],
    msl["bitnet/expert_of_floats"]
);
/// Of activations of eight bits.
static OF_CODES: [Kernel; 2] = experts!(
    "bitlinear_experts_int8",
    BINDINGS,
    wgsl [EXACT, "bitnet/expert_of_codes"],
    msl ["shared/exact", "bitnet/expert_of_codes"]
);

static SUM: Kernel = Kernel::trusted(
    "experts_sum",
    SumParams::FIELDS,
    &[read("x", F32), read("weights", F32), read_write("y", F32)],
    &[
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "bitnet/experts_sum"]),
        Source::msl(msl!["shared/prelude", "bitnet/experts_sum"]),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] =
    &[&OF_FLOATS[0], &OF_FLOATS[1], &OF_CODES[0], &OF_CODES[1], &SUM];

/// Rows as products with experts take them.
#[derive(Clone)]
pub(crate) struct ExpertActivations {
    block_float: BlockFloatActivations,
    /// Where activations are quantized to 8 bits.
    codes: Option<QuantizedActivations>,
}

impl ExpertActivations {
    /// Memory for `[rows, columns]`, for matrices with scales per `group` of columns, or without,
    /// and for products of `tiles` or of each row alone.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::Invalid`] for a group that is not a multiple of 16.
    pub fn uninit(
        context: &Context,
        shape: [usize; 2],
        group: Option<usize>,
        (quantized, tiles): (bool, bool),
    ) -> Result<Self> {
        let codes = || QuantizedActivations::uninit(context, shape[0], shape[1], Layout::Int8);
        let layout = if tiles { BlockFloatLayout::TensorCores } else { BlockFloatLayout::ByPlace };
        Ok(Self {
            block_float: BlockFloatActivations::in_layout(context, shape, group, layout)?,
            codes: quantized.then(codes).transpose()?,
        })
    }

    /// Records the conversion of `x`.
    ///
    /// # Errors
    /// [`Error::Shape`] if `x` does not fit; [`Error::Invalid`] for more columns than sums of codes
    /// are exact for.
    pub fn convert(&self, encoder: &mut Encoder, x: &Tensor<f32>) -> Result<()> {
        let Some(codes) = &self.codes else {
            return quantize_block_float_into(encoder, x, &self.block_float);
        };
        codes.layout().check_features(OP, codes.features(), encoder)?;
        quantize_activations_into(encoder, x, codes)?;
        block_float_codes_into(encoder, codes, &self.block_float)
    }
}

/// Which matrix each row uses, `[rows]`, and the rows sorted by it, for products of tiles.
#[derive(Clone, Copy)]
pub(crate) struct Chosen<'a> {
    pub experts: &'a Tensor<u32>,
    pub sorted: Option<&'a SortedExperts>,
}

/// Records the products of `x` `[rows / per_token, columns]` with the matrices `chosen` `[rows]`,
/// into `y` `[rows, n]`. `w` has the rows of all `experts` matrices, one after another. Activations
/// have been made for tiles where rows are sorted.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; [`Error::Invalid`] for a matrix whose rows are not those of
/// `experts` matrices, or blocks of `x` that are not those of `w`.
pub(crate) fn bitlinear_experts_into<Y: Float>(
    encoder: &mut Encoder,
    x: &ExpertActivations,
    (w, experts): (&TernaryMatrix, usize),
    Chosen { experts: chosen, sorted }: Chosen<'_>,
    y: Out<'_, Y>,
) -> Result<()> {
    let ExpertActivations { block_float, codes } = x;
    let (tokens, k, block) = (block_float.tokens(), w.columns(), block_float.block());
    let m = chosen.len();
    let [n, per_token] = divided(w, experts, m, tokens)?;
    if block_float.features() != k || block != block_columns(w.group()) {
        return Err(Error::Shape {
            op: OP,
            what: "x",
            expected: format!("[m, {k}], in blocks of {}", block_columns(w.group())),
            found: [tokens, block_float.features()].into(),
        });
    }
    y.check(OP, m, n)?;
    let blocks = k.div_ceil(block);
    let lanes = lanes(1, blocks);
    let params = Params {
        m: m as u32,
        n: n as u32,
        blocks: blocks as u32,
        words: w.row_words() as u32,
        block_words: (block / CODES_PER_WORD) as u32,
        groups: (w.scales.len() / w.rows().max(1)) as u32,
        group_blocks: w.group().map_or(blocks, |size| size / block).max(1) as u32,
        lanes,
        add: y.adds().into(),
        experts: experts as u32,
        per_token: per_token as u32,
        scaled_last: w.group().is_none().into(),
    };
    if let (Some(sorted), Some(kernel)) = (sorted, tile_product(encoder.context())) {
        let bindings: [&dyn Bind; 7] = [
            &block_float.values,
            &w.codes,
            &w.scales,
            &block_float.units,
            y.tensor(),
            &sorted.sorted,
            &sorted.tiles,
        ];
        let rows = sorted.most() * kernel.sources()[0].tile[1] as usize;
        let extent = Extent::with_work([n, rows, 1], product(&[n, m, k]));
        return encoder.dispatch(kernel, &params, &bindings, extent);
    }
    let quads = block.is_multiple_of(4 * CODES_PER_WORD) && k.is_multiple_of(block);
    let values = block_float.values.cast::<f32>();
    let extent = [n.div_ceil((4 * THREADS / lanes) as usize), m, 1];
    let extent = Extent::with_work(extent, product(&[n, m, k]));
    let floats: [&dyn Bind; 5] = [&values, &w.codes, &w.scales, y.tensor(), chosen];
    match codes {
        None => encoder.dispatch(&OF_FLOATS[usize::from(quads)], &params, &floats, extent),
        Some(codes) => {
            let bindings: [&dyn Bind; 6] =
                [&values, &w.codes, &w.scales, y.tensor(), chosen, &codes.scales];
            encoder.dispatch(&OF_CODES[usize::from(quads)], &params, &bindings, extent)
        }
    }
}

/// Rows of an expert, and experts of a token.
fn divided(w: &TernaryMatrix, experts: usize, m: usize, tokens: usize) -> Result<[usize; 2]> {
    let invalid = |what| Err(Error::Invalid { op: OP, what });
    if experts == 0 || !w.rows().is_multiple_of(experts) {
        return invalid(format!("{} rows of {experts} experts", w.rows()));
    }
    if m != 0 && (tokens == 0 || !m.is_multiple_of(tokens)) {
        return invalid(format!("{m} chosen experts of {tokens} tokens"));
    }
    Ok([w.rows() / experts, (m / tokens.max(1)).max(1)])
}

/// BitLinear with a matrix for each row: what [`bitlinear_experts`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct ExpertLinear<'a, Y = f32> {
    x: &'a Tensor<f32>,
    w: &'a TernaryMatrix,
    experts: usize,
    chosen: &'a Tensor<u32>,
    quantized: bool,
    output: PhantomData<Y>,
}

/// Products with the experts of a mixture: row i of the result `[m, n]` is row i / (m / tokens) of
/// `x` `[tokens, k]` times matrix `chosen[i]` of `w`, which has `experts` matrices `[n, k]`, one
/// after another. The result is NaN where there is no such matrix. Only the chosen matrices are
/// read. On tensor cores, many rows in block floating point are sorted by their matrix, which tiles
/// of them read once; else each row reads its own.
///
/// ```no_run
/// use bitnet_wgpu::{Encoder, Result, Tensor, bitnet, transformer, weights::TernaryMatrix};
///
/// /// The rows of two experts for each token, `[2 · tokens, n]`.
/// fn of_two(encoder: &mut Encoder, x: &Tensor<f32>, logits: &Tensor<f32>, w: &TernaryMatrix) -> Result<Tensor<f32>> {
///     let (chosen, _weights) = transformer::route(logits, 2).forward(encoder)?;
///     bitnet::bitlinear_experts(x, w, 8, &chosen).forward(encoder)
/// }
/// ```
pub fn bitlinear_experts<'a>(
    x: &'a Tensor<f32>,
    w: &'a TernaryMatrix,
    experts: usize,
    chosen: &'a Tensor<u32>,
) -> ExpertLinear<'a> {
    ExpertLinear { x, w, experts, chosen, quantized: false, output: PhantomData }
}

forward!(impl['a, Y: Float] ExpertLinear<'a, Y> => Y);

impl<'a, Y: Float> ExpertLinear<'a, Y> {
    /// Sets the element type of the result: `f32` or `f16`.
    pub fn output_type<Z: Float>(self) -> ExpertLinear<'a, Z> {
        let Self { x, w, experts, chosen, quantized, .. } = self;
        ExpertLinear { x, w, experts, chosen, quantized, output: PhantomData }
    }

    /// Quantizes rows of `x` to 8 bits. Without it they are in block floating point.
    pub fn int8(self) -> Self {
        Self { quantized: true, ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok([self.chosen.len(), self.w.rows() / self.experts.max(1)].into())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, Y>) -> Result<()> {
        let Self { x, w, experts, chosen, quantized, .. } = self;
        let (tokens, columns) = x.shape().as_matrix();
        let context = encoder.context().clone();
        let matrices = (w, experts);
        let sorted = match quantized {
            true => None,
            false => SortedExperts::uninit(&context, chosen.len(), matrices)?,
        };
        let kinds = (quantized, sorted.is_some());
        let rows = ExpertActivations::uninit(&context, [tokens, columns], w.group(), kinds)?;
        encoder.transaction(|encoder| {
            rows.convert(encoder, x)?;
            sorted.as_ref().map_or(Ok(()), |sorted| sorted.sort(encoder, chosen))?;
            let chosen = Chosen { experts: chosen, sorted: sorted.as_ref() };
            bitlinear_experts_into(encoder, &rows, matrices, chosen, y)
        })
    }
}

/// The weighted sum of experts: what [`experts_sum`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct ExpertsSum<'a> {
    x: &'a Tensor<f32>,
    weights: &'a Tensor<f32>,
}

/// The sum of each token's experts by their weights, in their order: `x` `[tokens · used, columns]`
/// and `weights` `[tokens, used]` give `[tokens, columns]`.
pub fn experts_sum<'a>(x: &'a Tensor<f32>, weights: &'a Tensor<f32>) -> ExpertsSum<'a> {
    ExpertsSum { x, weights }
}

forward!(impl['a] ExpertsSum<'a> => f32);

impl ExpertsSum<'_> {
    fn shape(&self) -> Result<Shape> {
        Ok([self.weights.shape().as_matrix().0, self.x.shape().as_matrix().1].into())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let (op, (rows, columns)) = (SUM.name, self.x.shape().as_matrix());
        let (tokens, used) = self.weights.shape().as_matrix();
        if rows != tokens * used {
            let (what, expected) = ("x", format!("[{}, columns]", tokens * used));
            return Err(Error::Shape { op, what, expected, found: self.x.shape() });
        }
        y.check(op, tokens, columns)?;
        let params = SumParams {
            tokens: tokens as u32,
            used: used as u32,
            columns: columns as u32,
            add: y.adds().into(),
        };
        let length = tokens * columns;
        encoder.dispatch(&SUM, &params, &[self.x, self.weights, y.tensor()], [length, 1, 1])
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::{
        ops::bitnet::{
            bitlinear::reference::bitlinear_quantized,
            bitlinear_block_float::reference::bitlinear_block_float,
            quantize_activations::host::quantize_activations,
            quantize_block_float::host::quantize_block_float,
        },
        weights::ternary::packed::PackedTernary,
    };

    /// CPU reference of [`bitlinear_experts`](fn@crate::bitnet::bitlinear_experts), for one row `x`
    /// and its matrix `w`, with [`int8`](ExpertLinear::int8) or without: bit-identical.
    ///
    /// # Errors
    /// [`Error::Length`] if it has another length.
    pub fn bitlinear_expert(x: &[f32], w: &PackedTernary, int8: bool) -> Result<Vec<f32>> {
        if int8 {
            return bitlinear_quantized(&quantize_activations(x, 1, w.columns())?, w);
        }
        let mut rounded = x.to_vec();
        quantize_block_float(&mut rounded, w.columns(), w.group())?;
        bitlinear_block_float(&rounded, w)
    }

    /// CPU reference of [`experts_sum`](fn@crate::bitnet::experts_sum), of one token: equal where
    /// multiplications are fused with sums.
    pub fn experts_sum(x: &[f32], weights: &[f32]) -> Vec<f32> {
        let columns = x.len() / weights.len().max(1);
        let sum = |column: usize| {
            weights
                .iter()
                .enumerate()
                .fold(0f32, |sum, (j, weight)| weight.mul_add(x[j * columns + column], sum))
        };
        (0..columns).map(sum).collect()
    }
}
