//! BitLinear with weights of 1, 2, 4 or 8 bits and activations that are not quantized, y = x·Wᵀ
//! with W = scale·(code - zero), and its gradient for the input, dx = dy·W (straight through the
//! quantizer of the weights: Bengio et al. 2013, arXiv:1308.3432).

use super::decoded::product_shape;
use crate::{
    element::Float,
    error::Result,
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
        source::{HOLE, Source},
    },
    msl,
    ops::tensor::{
        epilogue::{Epilogue, Filling, STORE, finished},
        matmul_kernels::{Forms, metal_tile, tile},
    },
    params,
    weights::int::matrix::IntMatrix,
    wgsl,
};

params! {
    struct Params {
        m: u32, n: u32, k: u32, words: u32, groups: u32, group_size: u32, bits: u32, transposed: u32, add: u32, biased: u32, activation: u32,
    }
}

/// Products as they are, and with an epilogue, whose bias is bound in the sixth place.
static MATMUL_INT: Forms = {
    const BINDINGS: &[Binding] = &[
        read("a", Float("X")),
        read("codes", U32),
        read("w_scale", F32),
        read("w_zero", F32),
        read_write("y", Float("Y")),
        read("bias", Float("X")),
    ];
    const SOURCES: &[Source] = &[
        tile(wgsl![
            "shared/ids",
            "bitnet/matmul_int",
            "tensor/matmul_a",
            "tensor/matmul_block",
            HOLE,
            "tensor/matmul"
        ]),
        metal_tile(msl![
            "shared/prelude",
            "tensor/matmul_side",
            HOLE,
            "tensor/matmul_tiles",
            "bitnet/int/matmul"
        ]),
    ];
    const FINISH: Filling = finished!("X", 5, 6, wgsl ["tensor/matmul_finish"], msl []);
    let plain = Kernel::trusted("matmul_int", Params::FIELDS, BINDINGS.split_at(5).0, SOURCES);
    let finish = Kernel::trusted("matmul_int_finish", Params::FIELDS, BINDINGS, SOURCES);
    [STORE.fill(plain.entry("matmul")), FINISH.fill(finish.entry("matmul"))]
};

pub(super) const KERNELS: &[&Kernel] = &[&MATMUL_INT[0], &MATMUL_INT[1]];

/// [`bitlinear_int_with`] into a tensor of the caller. What is finished is added to an
/// [`Out::add`], which so serves for a residual.
///
/// Gradients: with dz = dy·activation'(x·Wᵀ + bias), [`bitlinear_int_backward`] of dz for x, and
/// the sum of dz over rows for the bias.
///
/// # Errors
/// As [`bitlinear_int_into`]; [`Error::Shape`](crate::Error::Shape) for a bias that is not
/// `[rows]`.
pub(crate) fn bitlinear_int_with_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    w: &IntMatrix,
    epilogue: &Epilogue<'_, X>,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    record(encoder, "bitlinear_int", x, w, epilogue, y.into(), true)
}

/// [`bitlinear_int_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `dy` or the output does not fit `w`.
pub(crate) fn bitlinear_int_backward_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    dy: &Tensor<X>,
    w: &IntMatrix,
    dx: impl Into<Out<'y, Y>>,
) -> Result<()> {
    record(encoder, "bitlinear_int_backward", dy, w, &Epilogue::new(), dx.into(), false)
}

fn record<X: Float, Y: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    a: &Tensor<X>,
    w: &IntMatrix,
    epilogue: &Epilogue<'_, X>,
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
        biased: epilogue.has_bias().into(),
        activation: epilogue.code(),
    };
    let [plain, finish] = &MATMUL_INT;
    let bindings: [&dyn Bind; 6] =
        [a, &w.codes, &w.scales, &w.zeros, y.tensor(), epilogue.bias_or(op, n, a)?];
    match epilogue.is_empty() {
        true => encoder.dispatch(plain, &params, &bindings[..5], Extent::products([n, m, 1], k)),
        false => encoder.dispatch(finish, &params, &bindings, Extent::products([n, m, 1], k)),
    }
}
