//! The head: `x` `[m, k]` times a dense matrix `[n, k]`, whose bytes are the cost; made for few tokens.

use super::attention::dot;
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{REDUCE, Source, Work},
    },
    msl,
    ops::tensor::pad_rows::pad_rows,
    params,
    weights::dense::{DenseElement, DenseMatrix, PackedDense},
    wgsl,
};
use half::{bf16, f16};
use rayon::prelude::*;

params! { struct Params { rows: u32, tokens: u32, blocks: u32, add: u32 } }

const fn kernel(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] = &[read("table", U32), read("table_scale", F32), read("x", F32), read_write("y", F32)];
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry("dense_gemv")
}

pub(super) const KERNELS: &[&Kernel] = &[&DENSE_GEMV_F32, &DENSE_GEMV_F16, &DENSE_GEMV_BF16, &DENSE_GEMV_INT8];

/// 32 lanes make four rows, for four tokens at a time; a turn of the loop takes 16 bytes of each row, `elements` of them.
const fn gemv(source: Source, elements: u32) -> Source {
    let work = Work::new(16 * elements, "products", 4 * 16 + 4 * 4 * elements, 32 * elements);
    source.workgroup_size([256, 1, 1]).tile([32, 4, 1]).constants(&[("ROWS", 4)]).work(work)
}

static DENSE_GEMV_F32: Kernel = kernel(
    "dense_gemv_f32",
    &[
        gemv(Source::wgsl(wgsl![REDUCE, "transformer/dense_f32", "transformer/dense_gemv"]), 4).workgroup_bytes(1024),
        gemv(Source::msl(msl!["shared/prelude", "transformer/dense_f32", "transformer/dense_gemv"]), 4),
    ],
);
static DENSE_GEMV_F16: Kernel = kernel(
    "dense_gemv_f16",
    &[
        gemv(Source::wgsl(wgsl![REDUCE, "transformer/dense_f16", "transformer/dense_gemv"]), 8).workgroup_bytes(1024),
        gemv(Source::msl(msl!["shared/prelude", "transformer/dense_f16", "transformer/dense_gemv"]), 8),
    ],
);
static DENSE_GEMV_BF16: Kernel = kernel(
    "dense_gemv_bf16",
    &[
        gemv(Source::wgsl(wgsl![REDUCE, "transformer/dense_bf16", "transformer/dense_gemv"]), 8).workgroup_bytes(1024),
        gemv(Source::msl(msl!["shared/prelude", "transformer/dense_bf16", "transformer/dense_gemv"]), 8),
    ],
);
static DENSE_GEMV_INT8: Kernel = kernel(
    "dense_gemv_int8",
    &[
        gemv(Source::wgsl(wgsl![REDUCE, "transformer/dense_int8", "transformer/dense_gemv"]), 16).workgroup_bytes(1024),
        gemv(Source::msl(msl!["shared/prelude", "transformer/dense_int8", "transformer/dense_gemv"]), 16),
    ],
);

/// `x` `[m, k]` times `w` `[n, k]` as `[m, n]`, in `f32`.
///
/// # Errors
/// As [`dense_gemv_into`].
pub fn dense_gemv(encoder: &mut Encoder, x: &Tensor<f32>, w: &DenseMatrix) -> Result<Tensor<f32>> {
    let y = Tensor::uninit(encoder.context(), [x.shape().as_matrix().0, w.rows()])?;
    dense_gemv_into(encoder, x, w, &y)?;
    Ok(y)
}

/// [`dense_gemv`] into a tensor of the caller, `[m, n]`. Where rows of `w` are not whole groups of 16 bytes, a dispatch more pads `x` as `w` is.
///
/// # Errors
/// [`Error::Shape`] if `x`, `w` and `y` do not fit.
pub fn dense_gemv_into<'y>(encoder: &mut Encoder, x: &Tensor<f32>, w: &DenseMatrix, y: impl Into<Out<'y, f32>>) -> Result<()> {
    let (op, y) = ("dense_gemv", y.into());
    let (m, k) = x.shape().as_matrix();
    if k != w.columns() {
        return Err(Error::Shape { op, what: "x", expected: format!("[m, {}]", w.columns()), found: x.shape() });
    }
    y.check(op, m, w.rows())?;
    let x = if k == w.padded() { x.clone() } else { pad_rows(encoder, x, w.padded())? };
    let kernel = match w.element() {
        DenseElement::F32 => &DENSE_GEMV_F32,
        DenseElement::F16 => &DENSE_GEMV_F16,
        DenseElement::Bf16 => &DENSE_GEMV_BF16,
        DenseElement::Int8 => &DENSE_GEMV_INT8,
    };
    let params = Params { rows: w.rows() as u32, tokens: m as u32, blocks: w.blocks() as u32, add: y.adds().into() };
    encoder.dispatch(kernel, &params, &[&w.words, &w.scales, &x, y.tensor()], [w.rows(), m, 1])
}

/// The CPU twin, on all cores: equal but for the order of a float sum.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn dense_gemv_cpu(x: &[f32], w: &PackedDense) -> Result<Vec<f32>> {
    let (n, k) = (w.rows(), w.columns().max(1));
    if !x.len().is_multiple_of(k) {
        return Err(Error::Length { shape: [x.len() / k, k].into(), found: x.len() });
    }
    let m = x.len() / k;
    let stride = w.element().row_words(w.columns());
    let mut by_row = vec![0f32; n * m];
    by_row.par_chunks_mut(m.max(1) * 16).enumerate().for_each(|(chunk, outputs)| {
        let mut wide = vec![0f32; k];
        for (i, outputs) in outputs.chunks_mut(m).enumerate() {
            let row = chunk * 16 + i;
            widen(w.element(), &w.words()[row * stride..][..stride], &mut wide);
            let scale = w.scales().get(row).copied().unwrap_or(1.0);
            for (out, x) in outputs.iter_mut().zip(x.chunks_exact(k)) {
                *out = dot(&wide, x) * scale;
            }
        }
    });
    if m == 1 {
        return Ok(by_row);
    }
    Ok((0..m * n).map(|at| by_row[at % n * m + at / n]).collect())
}

/// A row's elements as floats, not scaled.
#[multiversion::multiversion(targets = "simd")]
fn widen(element: DenseElement, words: &[u32], to: &mut [f32]) {
    match element {
        DenseElement::F32 => to.iter_mut().zip(bytemuck::cast_slice::<_, f32>(words)).for_each(|(to, &v)| *to = v),
        DenseElement::F16 => to.iter_mut().zip(bytemuck::cast_slice::<_, f16>(words)).for_each(|(to, v)| *to = v.to_f32()),
        DenseElement::Bf16 => {
            to.iter_mut().zip(bytemuck::cast_slice::<_, u16>(words)).for_each(|(to, &v)| *to = bf16::from_bits(v).to_f32())
        }
        DenseElement::Int8 => to.iter_mut().zip(bytemuck::cast_slice::<_, i8>(words)).for_each(|(to, &v)| *to = f32::from(v)),
    }
}
