//! BitLinear with activations that are not quantised, y = x·Wᵀ with W = β·Wq, and the gradient of any BitLinear for its input, dx = dy·W (the weights
//! and activations being taken for what they are quantised to: the straight-through estimator of Bengio et al. 2013, arXiv:1308.3432).

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Source, Work},
    },
    params,
    weights::ternary::{matrix::TernaryMatrix, packed::PackedTernary},
    wgsl,
};

params! { struct Params { m: u32, n: u32, k: u32, words: u32, groups: u32, group_words: u32, transposed: u32, add: u32 } }

static MATMUL_TERNARY: Kernel = Kernel::trusted(
    "matmul_ternary",
    Params::FIELDS,
    &[read("a", Float("X")), read("codes", U32), read("w_scale", F32), read_write("y", Float("Y"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/ternary", "bitnet/matmul_ternary", "tensor/matmul"])
        .workgroup_size([256, 1, 1])
        .tile([64, 64, 1])
        .constants(&[("DEPTH", 16)])
        .workgroup_bytes(8320)
        .work(Work::new(256, "products", 17, 512))],
)
.entry("matmul");

pub(super) const KERNELS: &[&Kernel] = &[&MATMUL_TERNARY];

/// y = x·Wᵀ: `x` `[.., k]` as it is, `w` `[rows, k]` with any scales; gives `[.., rows]`. Products are added in `f32`, in the order of k. For models
/// whose activations are not quantised (W1.58A16); [`bitlinear`](super::bitlinear()) quantises them, and is faster.
///
/// # Errors
/// As [`bitlinear_float_into`].
pub fn bitlinear_float<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, w: &TernaryMatrix) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape().with_last(w.rows()))?;
    bitlinear_float_into(encoder, x, w, &y)?;
    Ok(y)
}

/// [`bitlinear_float`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if `x` or the output does not fit `w`.
pub fn bitlinear_float_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    w: &TernaryMatrix,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    record(encoder, "bitlinear_float", x, w, y.into(), true)
}

/// dx = dy·W: the gradient of a BitLinear for its input, straight through its quantisers. `dy` is `[.., rows]`; gives `[.., k]`. The weights are decoded
/// where they are multiplied: there is no dense copy. (The gradient for the weights is `matmul(Side::transposed(dy), x)`.)
///
/// # Errors
/// As [`bitlinear_backward_into`].
pub fn bitlinear_backward<T: Float>(encoder: &mut Encoder, dy: &Tensor<T>, w: &TernaryMatrix) -> Result<Tensor<T>> {
    let dx = Tensor::uninit(encoder.context(), dy.shape().with_last(w.columns()))?;
    bitlinear_backward_into(encoder, dy, w, &dx)?;
    Ok(dx)
}

/// [`bitlinear_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if `dy` or the output does not fit `w`.
pub fn bitlinear_backward_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    dy: &Tensor<X>,
    w: &TernaryMatrix,
    dx: impl Into<Out<'y, Y>>,
) -> Result<()> {
    record(encoder, "bitlinear_backward", dy, w, dx.into(), false)
}

fn record<X: Float, Y: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    a: &Tensor<X>,
    w: &TernaryMatrix,
    y: Out<'_, Y>,
    transposed: bool,
) -> Result<()> {
    let ((m, k), (rows, columns)) = (a.shape().as_matrix(), (w.rows(), w.columns()));
    let (depth, n) = if transposed { (columns, rows) } else { (rows, columns) };
    if k != depth {
        return Err(Error::Shape { op, what: "the input", expected: format!("[.., {depth}]"), found: a.shape() });
    }
    y.check_shape(op, a.shape().with_last(n))?;
    let words = w.row_words();
    let params = Params {
        m: m as u32,
        n: n as u32,
        k: k as u32,
        words: words as u32,
        groups: (w.scales.len() / rows.max(1)) as u32,
        group_words: w.group().map_or(words, |size| size / 16).max(1) as u32,
        transposed: transposed.into(),
        add: y.adds().into(),
    };
    encoder.dispatch(&MATMUL_TERNARY, &params, &[a, &w.codes, &w.scales, y.tensor()], [n, m, 1])
}

/// The CPU twin of [`bitlinear_float`], of one row: products added in the order of k.
///
/// # Errors
/// [`Error::Length`] if it has another length.
pub fn bitlinear_float_cpu(x: &[f32], w: &PackedTernary) -> Result<Vec<f32>> {
    if x.len() != w.columns() {
        return Err(Error::Length { shape: [w.columns()].into(), found: x.len() });
    }
    let dense = w.dequantize();
    let row = |row: &[f32]| row.iter().zip(x).fold(0.0, |sum: f32, (w, x)| w.mul_add(*x, sum));
    Ok(if x.is_empty() { vec![0.0; w.rows()] } else { dense.chunks_exact(x.len()).map(row).collect() })
}

/// The CPU twin of [`bitlinear_backward`], of one row.
///
/// # Errors
/// [`Error::Length`] if it has another length.
pub fn bitlinear_backward_cpu(dy: &[f32], w: &PackedTernary) -> Result<Vec<f32>> {
    if dy.len() != w.rows() {
        return Err(Error::Length { shape: [w.rows()].into(), found: dy.len() });
    }
    let (dense, mut dx) = (w.dequantize(), vec![0.0; w.columns()]);
    for (dy, row) in dy.iter().zip(dense.chunks_exact(w.columns().max(1))) {
        dx.iter_mut().zip(row).for_each(|(dx, w)| *dx = dy.mul_add(*w, *dx));
    }
    Ok(dx)
}
