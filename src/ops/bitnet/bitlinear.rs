//! BitLinear: `x` `[m, k]` quantized to int8 × ternary `w` `[n, k]` → `y` `[m, n]`.
//!
//! acc = Σ xq·Wq is an exact integer, whatever the kernel, and y = (acc · β) / a, the quotient
//! correctly rounded: every implementation here is bit-identical. Where W is scaled per group of
//! columns, the integers of blocks of them are each multiplied by their β, which rounds, and added
//! in order: bit-identical too. A β that is stored in 16 bits leaves the product exact as long as
//! acc has 16 bits, and then y is the float nearest to the true value.

use super::{
    activations::{Layout, QuantizedActivations},
    bitlinear_block_float::bitlinear_block_float_into,
    bitlinear_kernels::{self, QUOTIENT},
    bitlinear_product::{FinishParams, Params},
    host_activations::HostActivations,
    plan::{forms, layout_on},
    quantize_activations::quantize_activations_into,
    quantize_block_float::{block_columns, block_float_codes},
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        recording::Extent,
        tensor::{Bind, Tensor},
    },
    kernel::declaration::Kernel,
    ops::{
        forward::forward,
        tensor::epilogue::{self, Epilogue},
    },
    shape::Shape,
    weights::ternary::{
        layout::CODES_PER_WORD, matrix::TernaryMatrix, packed::PackedTernary, scales::groups,
    },
};
use rayon::prelude::*;

pub(super) const KERNELS: &[&Kernel] = bitlinear_kernels::KERNELS;

/// [`bitlinear_with`] into a tensor of the caller; more in [`bitlinear_quantized_with_into`].
///
/// # Errors
/// As [`bitlinear_into`]; [`Error::Shape`] for a bias that is not `[rows]`.
pub(crate) fn bitlinear_with_into<X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    w: &TernaryMatrix,
    epilogue: &Epilogue<'_, Y>,
    y: Out<'_, Y>,
) -> Result<()> {
    let (m, features) = x.shape().as_matrix();
    if features != w.columns() {
        return Err(Error::Shape {
            op: "bitlinear",
            what: "x",
            expected: format!("[.., {}]", w.columns()),
            found: x.shape(),
        });
    }
    let layout =
        if w.group().is_some() { Layout::Int8 } else { layout_on(features, encoder.context()) };
    let xq = QuantizedActivations::uninit(encoder.context(), m, features, layout)?;
    quantize_activations_into(encoder, x, &xq)?;
    bitlinear_quantized_with_into(encoder, &xq, w, epilogue, y)
}

/// [`bitlinear`] of activations that are already quantized (several matrices can share them):
/// `[m, n]` in `f32` or `f16`.
///
/// # Errors
/// As [`bitlinear_quantized_into`].
pub(crate) fn bitlinear_quantized<T: Float>(
    encoder: &mut Encoder,
    x: &QuantizedActivations,
    w: &TernaryMatrix,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), [x.tokens(), w.rows()])?;
    bitlinear_quantized_into(encoder, x, w, &y)?;
    Ok(y)
}

/// [`bitlinear_quantized`] into a tensor of the caller, `[m, n]`; with [`Out::add`] it adds to the
/// residual stream of a transformer.
///
/// # Errors
/// [`Error::Shape`] if `x`, `w` and `y` do not fit; [`Error::Invalid`] if the sum would not be
/// exact, or for a matrix with per-group scales and activations not in [`Layout::Int8`]. Such a
/// product takes memory of its own, four bytes for each of its numbers and of the activations':
/// [`Error::TooLarge`] where that is more than a tensor may have.
pub(crate) fn bitlinear_quantized_into<'a, T: Float>(
    encoder: &mut Encoder,
    x: &QuantizedActivations,
    w: &TernaryMatrix,
    y: impl Into<Out<'a, T>>,
) -> Result<()> {
    bitlinear_quantized_with_into(encoder, x, w, &Epilogue::new(), y)
}

/// [`bitlinear_quantized_with`] into a tensor of the caller. What is finished is added to an
/// [`Out::add`], which so serves for a residual.
///
/// The epilogue is applied by the kernel that makes the product, to the float that it would store:
/// a bias and activations but SiLU and GELU, which are close, are bit-identical everywhere.
/// Tensor cores for int8, and products with a matrix with per-group scales, store their products
/// first, in `f32`; another dispatch finishes them.
///
/// Gradients, straight through the quantizers: with dz = dy·activation'(x·Wᵀ + bias),
/// [`bitlinear_backward`](super::bitlinear_backward()) of dz for x, and the sum of dz over tokens
/// for the bias. A product with a bias alone keeps what the activation's gradient asks for.
///
/// # Errors
/// As [`bitlinear_quantized_into`]; [`Error::Shape`] for a bias that is not `[rows]`.
pub(crate) fn bitlinear_quantized_with_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &QuantizedActivations,
    w: &TernaryMatrix,
    epilogue: &Epilogue<'_, T>,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    let (op, y) = ("bitlinear", y.into());
    let (m, n, k) = (x.tokens(), w.rows(), w.columns());
    if x.features() != k {
        return Err(Error::Shape {
            op,
            what: "x",
            expected: format!("[m, {k}]"),
            found: [m, x.features()].into(),
        });
    }
    y.check(op, m, n)?;
    x.layout().check_features(op, k, encoder)?;
    if w.group().is_some() && x.layout() != Layout::Int8 {
        let what = "a matrix with per-group scales needs activations in the int8 layout".to_owned();
        return Err(Error::Invalid { op, what });
    }
    let (rows, tokens, words, add) = (n as u32, m as u32, w.row_words() as u32, y.adds().into());
    let (biased, activation, extent) =
        (epilogue.has_bias().into(), epilogue.code(), Extent::products([n, m, 1], k));
    if w.group().is_some() {
        return encoder.transaction(|encoder| by_groups(encoder, x, w, epilogue, &y));
    }
    let kernels = forms(m, n, k, x.layout(), encoder.context().capabilities());
    let record = |encoder: &mut Encoder, y: &dyn Bind, add| {
        let params = Params { rows, tokens, words, add };
        encoder.dispatch(
            &kernels[0],
            &params,
            &[&w.codes, &w.scales, &x.codes, &x.scales, &x.sums, y],
            extent,
        )
    };
    match kernels {
        _ if epilogue.is_empty() => record(encoder, y.tensor(), add),
        [_, finish] => {
            let bias = epilogue.bound_bias(op, n, encoder.context())?;
            let params = FinishParams { rows, tokens, words, add, biased, activation };
            encoder.dispatch(
                finish,
                &params,
                &[&w.codes, &w.scales, &x.codes, &x.scales, &x.sums, y.tensor(), &bias],
                extent,
            )
        }
        _ => {
            let products = Tensor::<f32>::uninit(encoder.context(), y.tensor().shape())?;
            encoder.transaction(|encoder| {
                record(encoder, &products, 0)?;
                epilogue.record(encoder, &products, y)
            })
        }
    }
}

/// The product with a matrix with per-group scales, for which codes are numbers in block
/// floating point.
fn by_groups<T: Float>(
    encoder: &mut Encoder,
    x: &QuantizedActivations,
    w: &TernaryMatrix,
    epilogue: &Epilogue<'_, T>,
    y: &Out<'_, T>,
) -> Result<()> {
    let bias = epilogue.bound_bias("bitlinear", w.rows(), encoder.context())?;
    let quantized = block_float_codes(encoder, x, w.group())?;
    let products = encoder.scratch::<f32>(2, [x.tokens(), w.rows()])?;
    bitlinear_block_float_into(encoder, &quantized, w, &products)?;
    let params = epilogue::Params::new(products.len(), w.rows(), epilogue, y);
    encoder.dispatch(
        &QUOTIENT,
        &params,
        &[&products, &bias, y.tensor(), &x.scales],
        [products.len(), 1, 1],
    )
}

/// The integer sums of a BitLinear: what [`accumulators`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Accumulators<'a> {
    x: &'a QuantizedActivations,
    w: &'a TernaryMatrix,
}

/// The integers Σ xq·Wq as floats, `[m, n]`: [`BitLinear`](super::BitLinear) with all scales 1. For
/// checks; exact on every device.
pub fn accumulators<'a>(x: &'a QuantizedActivations, w: &'a TernaryMatrix) -> Accumulators<'a> {
    Accumulators { x, w }
}

forward!(impl['a] Accumulators<'a> => f32);

impl Accumulators<'_> {
    fn shape(&self) -> Result<Shape> {
        Ok([self.x.tokens(), self.w.rows()].into())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let context = encoder.context();
        let ones =
            |shape: Shape| context.upload(&vec![1.0; shape.checked_len().unwrap_or(0)], shape);
        let x = self.x.with_scales(ones(self.x.scales.shape())?);
        let w = self.w.with_scales(ones(self.w.scales.shape())?);
        bitlinear_quantized_into(encoder, &x, &w, y)
    }
}

/// Calls `output(row, token, sum)` for every output, rows in parallel, where `sum(b)` is Σ xq·Wq
/// over the b-th block of columns, or over all of them where there are no groups; gives
/// `[tokens, rows]`.
fn by_rows<R: Copy + Default + Send>(
    x: &HostActivations,
    w: &PackedTernary,
    output: impl Fn(usize, usize, &dyn Fn(usize) -> i32) -> R + Sync,
) -> Result<Vec<R>> {
    x.check_bitlinear(w.columns())?;
    let (m, n) = (x.tokens, w.rows());
    // Four codes a byte.
    let block_bytes =
        w.group().map_or(w.row_words() * 4, |group| block_columns(Some(group)) / 4).max(1);
    let tokens: Vec<_> =
        (0..m).map(|token| Fields::of(x.row(token), w.row_words(), block_bytes)).collect();
    // Rows are the parallel dimension, so a row's outputs are made together and transposed at the
    // end.
    let mut by_row = vec![R::default(); n * m];
    by_row.par_chunks_mut(m.max(1)).enumerate().for_each(|(row, outputs)| {
        let bytes: &[u8] = bytemuck::cast_slice(w.row(row));
        for (token, out) in outputs.iter_mut().enumerate() {
            *out = output(row, token, &|block| tokens[token].sum(bytes, block, block_bytes));
        }
    });
    if m == 1 {
        return Ok(by_row);
    }
    Ok((0..m * n).map(|at| by_row[at % n * m + at / n]).collect())
}

/// A token's activations by the field of a byte of codes that they meet, and their sums over blocks
/// of columns.
struct Fields {
    fields: [Vec<i16>; 4],
    block_sums: Vec<i32>,
}

impl Fields {
    fn of(codes: &[i8], words: usize, block_bytes: usize) -> Self {
        let mut fields = [(); 4].map(|()| vec![0; 4 * words]);
        for (k, &code) in codes.iter().enumerate() {
            let (word, e) = (k / CODES_PER_WORD, k % CODES_PER_WORD);
            fields[e / 4][4 * word + e % 4] = i16::from(code);
        }
        let block_sums = codes
            .chunks(4 * block_bytes)
            .map(|block| block.iter().map(|&code| i32::from(code)).sum())
            .collect();
        Self { fields, block_sums }
    }

    /// Σ x·(code - 1) over a block: the sum with raw codes, less the sum of the activations.
    fn sum(&self, bytes: &[u8], block: usize, block_bytes: usize) -> i32 {
        let range =
            (block * block_bytes).min(bytes.len())..((block + 1) * block_bytes).min(bytes.len());
        let fields = self.fields.each_ref().map(|field| &field[range.clone()]);
        dot(&bytes[range], fields) - self.block_sums.get(block).copied().unwrap_or(0)
    }
}

/// Compiled for several instruction sets; in a form that compilers turn into 16-bit multiply-adds.
#[multiversion::multiversion(targets = "simd")]
fn dot(bytes: &[u8], [a, b, c, d]: [&[i16]; 4]) -> i32 {
    let product = |code: u8, x: i16| i32::from(i16::from(code & 3)) * i32::from(x);
    let mut sum = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        sum += product(byte, a[i])
            + product(byte >> 2, b[i])
            + product(byte >> 4, c[i])
            + product(byte >> 6, d[i]);
    }
    sum
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::bitnet::quantize_activations::host::quantize_activations;

    /// CPU reference of [`BitLinear`](crate::bitnet::BitLinear), on all cores, bit-identical. `x`
    /// is `[tokens, w.columns()]`, the result `[tokens, w.rows()]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows; [`Error::Invalid`] for more than 131,071
    /// features.
    pub fn bitlinear<T: Float>(x: &[T], tokens: usize, w: &PackedTernary) -> Result<Vec<T>> {
        let xq = quantize_activations(x, tokens, w.columns())?;
        Ok(bitlinear_quantized(&xq, w)?.into_iter().map(T::from_f32).collect())
    }

    /// CPU reference of [`BitLinear`](crate::bitnet::BitLinear) with int8 activations.
    ///
    /// # Errors
    /// [`Error::Shape`] if `x` does not fit `w`; [`Error::Length`] if it has not as many codes and
    /// scales as it says; [`Error::Invalid`] for too many features.
    pub fn bitlinear_quantized(x: &HostActivations, w: &PackedTernary) -> Result<Vec<f32>> {
        let scales = w.row_scales();
        let (block, groups) = (block_columns(w.group()), groups(w.columns(), w.group()));
        by_rows(x, w, |row, token, sum| match w.group() {
            None => sum(0) as f32 * scales[row] / x.scales[token],
            Some(size) => {
                let scaled = |b: usize| sum(b) as f32 * scales[row * groups + b * block / size];
                (0..w.columns().div_ceil(block)).fold(0.0, |all: f32, b| all + scaled(b))
                    / x.scales[token]
            }
        })
    }

    /// CPU reference of [`accumulators`](fn@crate::bitnet::accumulators), `[tokens, rows]`.
    ///
    /// # Errors
    /// As [`bitlinear_quantized`].
    pub fn accumulators(x: &HostActivations, w: &PackedTernary) -> Result<Vec<i32>> {
        let blocks = w.group().map_or(1, |_| w.columns().div_ceil(block_columns(w.group())));
        by_rows(x, w, |_, _, sum| (0..blocks).map(sum).sum())
    }
}
