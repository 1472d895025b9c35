//! BitLinear with weights of 1, 2, 4 or 8 bits and activations that are not quantised, y = x·Wᵀ with W = scale·(code - zero), and its gradient for the
//! input, dx = dy·W (straight through the quantiser of the weights: Bengio et al. 2013, arXiv:1308.3432).

use super::decoded::{backward_cpu, product_cpu, product_shape};
use crate::{
    element::Float,
    error::Result,
    gpu::{
        encoder::Encoder,
        out::Out,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
    },
    ops::tensor::matmul_kernels::tile,
    params,
    weights::int::{matrix::IntMatrix, packed::PackedInt},
    wgsl,
};

params! {
    struct Params { m: u32, n: u32, k: u32, words: u32, groups: u32, group_size: u32, bits: u32, transposed: u32, add: u32 }
}

static MATMUL_INT: Kernel = Kernel::trusted(
    "matmul_int",
    Params::FIELDS,
    &[read("a", Float("X")), read("codes", U32), read("w_scale", F32), read("w_zero", F32), read_write("y", Float("Y"))],
    &[tile(wgsl!["shared/ids", "bitnet/matmul_int", "tensor/matmul_a", "tensor/matmul_block", "tensor/matmul_store", "tensor/matmul"])],
)
.entry("matmul");

pub(super) const KERNELS: &[&Kernel] = &[&MATMUL_INT];

/// y = x·Wᵀ: `x` `[.., k]` as it is, `w` `[rows, k]`; gives `[.., rows]`. Products are added in `f32`, in the order of k.
///
/// # Errors
/// As [`bitlinear_int_into`].
pub fn bitlinear_int<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, w: &IntMatrix) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape().with_last(w.rows()))?;
    bitlinear_int_into(encoder, x, w, &y)?;
    Ok(y)
}

/// [`bitlinear_int`] into a tensor of the caller, of the type of `x` or another.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `x` or the output does not fit `w`.
pub fn bitlinear_int_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    w: &IntMatrix,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    record(encoder, "bitlinear_int", x, w, y.into(), true)
}

/// dx = dy·W: the gradient of [`bitlinear_int`] for its input. `dy` is `[.., rows]`; gives `[.., k]`. The weights are decoded where they are multiplied:
/// there is no dense copy. (The gradient for the weights is `matmul(Side::transposed(dy), x)`.)
///
/// # Errors
/// As [`bitlinear_int_backward_into`].
pub fn bitlinear_int_backward<T: Float>(encoder: &mut Encoder, dy: &Tensor<T>, w: &IntMatrix) -> Result<Tensor<T>> {
    let dx = Tensor::uninit(encoder.context(), dy.shape().with_last(w.columns()))?;
    bitlinear_int_backward_into(encoder, dy, w, &dx)?;
    Ok(dx)
}

/// [`bitlinear_int_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `dy` or the output does not fit `w`.
pub fn bitlinear_int_backward_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    dy: &Tensor<X>,
    w: &IntMatrix,
    dx: impl Into<Out<'y, Y>>,
) -> Result<()> {
    record(encoder, "bitlinear_int_backward", dy, w, dx.into(), false)
}

fn record<X: Float, Y: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    a: &Tensor<X>,
    w: &IntMatrix,
    y: Out<'_, Y>,
    transposed: bool,
) -> Result<()> {
    let [m, n, k] = product_shape(op, a.shape(), [w.rows(), w.columns()], &y, transposed)?;
    let params = Params {
        m: m as u32,
        n: n as u32,
        k: k as u32,
        words: w.row_words() as u32,
        groups: w.groups() as u32,
        group_size: w.group_size() as u32,
        bits: w.bits().count() as u32,
        transposed: transposed.into(),
        add: y.adds().into(),
    };
    let bindings: [&dyn Bind; 5] = [a, &w.codes, &w.scales, &w.zeros, y.tensor()];
    encoder.dispatch(&MATMUL_INT, &params, &bindings, [n, m, 1])
}

/// The CPU twin of [`bitlinear_int`], of one row: products added in the order of k.
///
/// # Errors
/// [`Error::Length`](crate::Error::Length) if it has another length.
pub fn bitlinear_int_cpu(x: &[f32], w: &PackedInt) -> Result<Vec<f32>> {
    product_cpu(x, &w.dequantize(), [w.rows(), w.columns()])
}

/// The CPU twin of [`bitlinear_int_backward`], of one row.
///
/// # Errors
/// [`Error::Length`](crate::Error::Length) if it has another length.
pub fn bitlinear_int_backward_cpu(dy: &[f32], w: &PackedInt) -> Result<Vec<f32>> {
    backward_cpu(dy, &w.dequantize(), [w.rows(), w.columns()])
}
