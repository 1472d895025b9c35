//! The LM head: `x` `[m, k]` times a dense matrix `[n, k]`. Made for few tokens, where reading the
//! matrix is the cost.

use super::{
    attention::dot,
    dense_int8::{self, Params},
};
use crate::{
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        recording::Extent,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, REDUCE, Source, Work},
    },
    msl,
    ops::{
        forward::forward,
        tensor::pad_rows::{pad_rows, quads_by_place},
    },
    shape::Shape,
    tuning::TuningKey,
    weights::dense::{DenseElement, DenseMatrix, PackedDense},
    wgsl,
};
use rayon::prelude::*;

const BINDINGS: &[Binding] =
    &[read("table", U32), read("table_scale", F32), read("x", F32), read_write("y", F32)];

/// The kernels of an element: for one token, for four at a time, and for eight.
type Family = [Kernel; 3];

/// Declares a [`Family`]; `$part` unpacks 16 bytes, `$elements` of them.
macro_rules! family_of {
    ($family:ident, $name:literal, $part:literal, $elements:literal) => {
        static $family: Family = {
            const WGSL: &[Part] = wgsl![REDUCE, "bitnet/row_sums", $part, "transformer/dense_gemv"];
            const METAL: &[Part] = msl!["shared/prelude", $part, "transformer/dense_gemv"];
            /// 32 lanes make four rows; a turn of the loop takes 16 bytes of each row.
            const fn kernel(name: &'static str, sources: &'static [Source]) -> Kernel {
                Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry("dense_gemv")
            }
            const fn gemv(source: Source, tokens: u32, elements: u32) -> Source {
                let (products, bytes) =
                    (4 * tokens * elements, 4 * 16 * elements / $elements + 4 * tokens * elements);
                let source = source
                    .workgroup_size([256, 1, 1])
                    .tile([32, tokens, 1])
                    .constants(&[("ROWS", 4)]);
                source.work(Work::new(products, "products", bytes, 2 * products))
            }
            const fn wgsl(tokens: u32) -> Source {
                // More than compilers unroll: the innermost loop is one of quads.
                let elements = if tokens * $elements > 64 { 4 } else { $elements };
                gemv(Source::wgsl(WGSL), tokens, elements).workgroup_bytes(1024)
            }
            const fn metal(tokens: u32) -> Source {
                gemv(Source::msl(METAL), tokens, $elements)
            }
            [
                kernel(concat!("dense_gemv_", $name), &[wgsl(1), metal(1)]),
                kernel(concat!("dense_gemv_", $name, "_4"), &[wgsl(4), metal(4)]),
                kernel(concat!("dense_gemv_", $name, "_8"), &[wgsl(8), metal(8)]),
            ]
        };
    };
}

family_of!(OF_F32, "f32", "transformer/dense_f32", 4);
family_of!(OF_F16, "f16", "transformer/dense_f16", 8);
family_of!(OF_BF16, "bf16", "transformer/dense_bf16", 8);
family_of!(OF_INT8, "int8", "transformer/dense_int8", 16);

/// Fewer rows than these, of floats, are split over the threads of a workgroup: routers and rates of
/// recurrent layers, of which teams of lanes with rows of their own would keep few cores busy. It
/// decides the order of a sum, so tuning must not change it. H200: "Hybrids and mixtures of
/// experts, faster".
const SPLIT_ROWS: usize = 1024;

/// Four rows of `tokens` tokens a workgroup; a turn of the loop takes 16 bytes of each.
const fn split(tokens: u32) -> Source {
    const PARTS: &[Part] = wgsl![REDUCE, "bitnet/row_sums", "transformer/dense_gemv_split"];
    let products = 4 * tokens * 4;
    Source::wgsl(PARTS)
        .workgroup_size([256, 1, 1])
        .tile([4, tokens, 1])
        .constants(&[("ROWS", 4)])
        .workgroup_bytes(1024 + 4 * 4 * tokens * 256 / 8)
        .work(Work::new(products, "products", 64 + 16 * tokens, 2 * products))
}

/// For one token, and for eight at a time.
static SPLIT: [Kernel; 2] = [
    Kernel::trusted("dense_gemv_split", Params::FIELDS, BINDINGS, &[split(1)]),
    Kernel::trusted("dense_gemv_split_8", Params::FIELDS, BINDINGS, &[split(8)])
        .entry("dense_gemv_split"),
];

pub(super) const KERNELS: &[&Kernel] = &[
    &SPLIT[0],
    &SPLIT[1],
    &OF_F32[0],
    &OF_F32[1],
    &OF_F32[2],
    &OF_F16[0],
    &OF_F16[1],
    &OF_F16[2],
    &OF_BF16[0],
    &OF_BF16[1],
    &OF_BF16[2],
    &OF_INT8[0],
    &OF_INT8[1],
    &OF_INT8[2],
];

const OP: &str = "dense_gemv";

/// A product with a dense matrix: what [`dense_gemv`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct DenseGemv<'a> {
    x: &'a Tensor<f32>,
    w: &'a DenseMatrix,
}

/// x·wᵀ of `x` `[m, k]` and `w` `[n, k]` (the LM head), `[m, n]` in `f32`. Where rows of `w` are not
/// whole groups of 16 bytes, a dispatch more pads `x` as `w` is; for several tokens, one more lays
/// `x` out, unless `w` is in `f32` with fewer than 1024 rows. It is batch-invariant: a token's products do not depend on the other tokens.
///
/// Where packed products of integers are fast, as on most GPUs but Apple's, and `w` is in int8 with
/// up to 65,536 columns, rows of `x` are first rounded to 22 bits and a sign, relative to a power of
/// two of their largest magnitude. So a product is off by at most 2^-22 of that magnitude for each
/// unit of Σ|w|, beside two roundings of its own. Sums are then exact, and results bit-identical on
/// all such GPUs. If a row has a number that is not finite, all its products are NaN there.
pub fn dense_gemv<'a>(x: &'a Tensor<f32>, w: &'a DenseMatrix) -> DenseGemv<'a> {
    DenseGemv { x, w }
}

forward!(impl['a] DenseGemv<'a> => f32);

impl DenseGemv<'_> {
    fn shape(&self) -> Result<Shape> {
        Ok([self.x.shape().as_matrix().0, self.w.rows()].into())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let Self { x, w } = self;
        let (m, k) = x.shape().as_matrix();
        if k != w.columns() {
            let expected = format!("[m, {}]", w.columns());
            return Err(Error::Shape { op: OP, what: "x", expected, found: x.shape() });
        }
        y.check(OP, m, w.rows())?;
        if dense_int8::is_exact(w, encoder.context().capabilities()) {
            return dense_int8::record(encoder, x, w, y);
        }
        let x =
            if k == w.padded() { x.clone() } else { pad_rows(x, w.padded()).forward(encoder)? };
        let family = match w.element() {
            DenseElement::F32 => &OF_F32,
            DenseElement::F16 => &OF_F16,
            DenseElement::Bf16 => &OF_BF16,
            DenseElement::Int8 => &OF_INT8,
        };
        let splits = w.element() == DenseElement::F32 && w.rows() < SPLIT_ROWS;
        let (kernel, x) = match m {
            _ if splits => (&SPLIT[usize::from(m > 1)], x),
            0..=1 => (&family[0], x),
            _ if m < encoder.context().capabilities().tuned(TuningKey::LmHeadUnrollTokens) => {
                (&family[1], quads_by_place(encoder, &x, w.blocks())?)
            }
            _ => (&family[2], quads_by_place(encoder, &x, w.blocks())?),
        };
        let (tokens, blocks) = (m as u32, w.blocks() as u32);
        let params = Params { rows: w.rows() as u32, tokens, blocks, add: y.adds().into() };
        let bindings: [&dyn Bind; 4] = [&w.words, &w.scales, &x, y.tensor()];
        encoder.dispatch(kernel, &params, &bindings, Extent::products([w.rows(), m, 1], k))
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`dense_gemv`](super::dense_gemv()), on all cores: equal but for the order
    /// of a float sum.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn dense_gemv(x: &[f32], w: &PackedDense) -> Result<Vec<f32>> {
        let (n, k) = (w.rows(), w.columns().max(1));
        if !x.len().is_multiple_of(k) {
            return Err(Error::Length { shape: [x.len() / k, k].into(), found: x.len() });
        }
        let m = x.len() / k;
        let mut by_row = vec![0f32; n * m];
        by_row.par_chunks_mut(m.max(1)).enumerate().for_each(|(row, y)| {
            // Codes are multiplied first, then scaled.
            let scale = w.scales().get(row).copied().unwrap_or(1.0);
            let numbers = w.unscaled_row(row);
            y.iter_mut().zip(x.chunks_exact(k)).for_each(|(y, x)| *y = dot(&numbers, x) * scale);
        });
        Ok((0..m * n).map(|at| by_row[at % n * m + at / n]).collect())
    }
}
