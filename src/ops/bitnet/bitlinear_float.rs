//! BitLinear with activations that are not quantized, y = x·Wᵀ with W = β·Wq, and the gradient of
//! any BitLinear for its input, dx = dy·W (the weights and activations being taken for what they
//! are quantized to: the straight-through estimator of Bengio et al. 2013, arXiv:1308.3432).

use super::decoded::product_shape;
use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, recording::Extent, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{HOLE, Part, Source, Work},
    },
    msl,
    ops::tensor::{
        epilogue::{Epilogue, Filling, STORE, finished},
        matmul_kernels::{Forms, Product, large_tile, metal_tile, metal_tile_of_quads, tile},
    },
    params,
    weights::ternary::{layout::CODES_PER_WORD, matrix::TernaryMatrix},
    wgsl,
};

params! {
    struct Params {
        m: u32, n: u32, k: u32, words: u32, groups: u32, group_words: u32, transposed: u32, add: u32, biased: u32, activation: u32,
    }
}

pub(super) const KERNELS: &[&Kernel] = &[
    &MATMUL_TERNARY[0],
    &MATMUL_TERNARY[1],
    &MATMUL_TERNARY_LARGE[0],
    &MATMUL_TERNARY_LARGE[1],
    &BITLINEAR_FLOAT_GEMV[0],
    &BITLINEAR_FLOAT_GEMV[1],
    &BITLINEAR_FLOAT_GEMV_QUADS[0],
    &BITLINEAR_FLOAT_GEMV_QUADS[1],
    &BITLINEAR_FLOAT_GEMV_ONE[0],
    &BITLINEAR_FLOAT_GEMV_ONE[1],
];

/// 8 rows × this many tokens a workgroup, 32 lanes four rows; a turn takes this many quads of each.
const fn gemv(parts: &'static [Part], tokens: u32, quads: u32) -> Source {
    let work = Work::new(
        16 * quads * tokens,
        "products",
        8 * quads + 16 * quads * tokens,
        32 * quads * tokens,
    );
    Source::wgsl(parts)
        .workgroup_size([64, 1, 1])
        .tile([8, tokens, 1])
        .work(work)
        .workgroup_bytes(1024 * tokens)
}

/// A [`gemv`] with the part that loads activations.
macro_rules! gemv_of {
    ($activations:literal, $tokens:literal, $quads:literal) => {
        gemv(
            wgsl![
                "shared/ids",
                "shared/ternary",
                "bitnet/matmul_ternary",
                $activations,
                "tensor/matmul_block",
                "bitnet/bitlinear_float_word",
                HOLE,
                "bitnet/bitlinear_float_gemv"
            ],
            $tokens,
            $quads,
        )
    };
}

/// A SIMD-group makes this many rows of `tokens`; a turn takes a word of each.
const fn metal(rows: u32, tokens: u32, constants: &'static [(&'static str, u32)]) -> Source {
    const PARTS: &[Part] =
        msl!["shared/prelude", "bitnet/bitlinear_float_word", HOLE, "bitnet/bitlinear_float_gemv"];
    let (products, bytes) = (16 * rows * tokens, 8 * rows + 64 * tokens);
    let source = Source::msl(PARTS)
        .workgroup_size([64, 1, 1])
        .tile([2 * rows, tokens, 1])
        .constants(constants);
    source
        .work(Work::new(products, "products", bytes, 2 * products))
        .workgroup_bytes(2 * rows * tokens * 33 * 4)
}

/// With an epilogue, whose bias is bound in the fifth place.
const FINISH: Filling = finished!("X", 4, 5, wgsl ["tensor/matmul_finish"], msl []);

const BINDINGS: &[Binding] = &[
    read("a", Float("X")),
    read("codes", U32),
    read("w_scale", F32),
    read_write("y", Float("Y")),
    read("bias", Float("X")),
];

/// Both forms of one declaration: products as they are, and with an epilogue.
const fn forms(names: [&'static str; 2], entry: &'static str, sources: &'static [Source]) -> Forms {
    let plain = Kernel::trusted(names[0], Params::FIELDS, BINDINGS.split_at(4).0, sources);
    let finish = Kernel::trusted(names[1], Params::FIELDS, BINDINGS, sources);
    [STORE.fill(plain.entry(entry)), FINISH.fill(finish.entry(entry))]
}

const METAL_TILE: &[Part] =
    msl!["shared/prelude", "tensor/matmul_side", HOLE, "tensor/matmul_tiles", "bitnet/matmul"];

static MATMUL_TERNARY: Forms = forms(
    ["matmul_ternary", "matmul_ternary_finish"],
    "matmul",
    &[
        tile(wgsl![
            "shared/ids",
            "shared/ternary",
            "bitnet/matmul_ternary",
            "tensor/matmul_a",
            "tensor/matmul_block",
            HOLE,
            "tensor/matmul"
        ]),
        metal_tile(METAL_TILE),
    ],
);

static MATMUL_TERNARY_LARGE: Forms = forms(
    ["matmul_ternary_large", "matmul_ternary_large_finish"],
    "matmul",
    &[
        large_tile(wgsl![
            "shared/ids",
            "shared/ternary",
            "bitnet/matmul_ternary",
            "tensor/matmul_a_quads",
            "tensor/matmul_block",
            HOLE,
            "tensor/matmul"
        ]),
        metal_tile_of_quads(METAL_TILE),
    ],
);

static BITLINEAR_FLOAT_GEMV: Forms = forms(
    ["bitlinear_float_gemv", "bitlinear_float_gemv_finish"],
    "bitlinear_float_gemv",
    &[gemv_of!("tensor/matmul_a", 4, 1), metal(4, 4, &[("ROWS", 4), ("ALIGNED", 0)])],
);

static BITLINEAR_FLOAT_GEMV_QUADS: Forms = forms(
    ["bitlinear_float_gemv_quads", "bitlinear_float_gemv_quads_finish"],
    "bitlinear_float_gemv",
    &[gemv_of!("tensor/matmul_a_quads", 4, 4), metal(4, 4, &[("ROWS", 4), ("ALIGNED", 1)])],
);

/// For one token, of rows that are whole words: what decoding is made of.
static BITLINEAR_FLOAT_GEMV_ONE: Forms = forms(
    ["bitlinear_float_gemv_one", "bitlinear_float_gemv_one_finish"],
    "bitlinear_float_gemv",
    &[gemv_of!("bitnet/whole_words", 1, 4), metal(8, 1, &[("ROWS", 8), ("ALIGNED", 2)])],
);

/// Up to this many tokens the weights' bytes are the cost, which a GEMV reads for four tokens at
/// once.
const GEMV_TOKENS: usize = 8;

/// The kernels for a product of activations and ternary weights; the order of their sums follows
/// from the shape.
fn plan(product: Product) -> &'static Forms {
    match product.b_along_k && product.m <= GEMV_TOKENS {
        true => gemv_forms(product.m, product.k),
        false if are_quads(product.k) && product.is_large() => &MATMUL_TERNARY_LARGE,
        false => &MATMUL_TERNARY,
    }
}

/// The kernels of a GEMV for `m` tokens, all bit-identical.
fn gemv_forms(m: usize, k: usize) -> &'static Forms {
    match m {
        1 if are_words(k) => &BITLINEAR_FLOAT_GEMV_ONE,
        _ if are_quads(k) => &BITLINEAR_FLOAT_GEMV_QUADS,
        _ => &BITLINEAR_FLOAT_GEMV,
    }
}

fn are_quads(k: usize) -> bool {
    k > 0 && k.is_multiple_of(4)
}

fn are_words(k: usize) -> bool {
    k > 0 && k.is_multiple_of(CODES_PER_WORD)
}

/// [`bitlinear_float_with`] into a tensor of the caller. What is finished is added to an
/// [`Out::add`], which so serves for a residual.
///
/// # Errors
/// As [`bitlinear_float_into`]; [`Error::Shape`](crate::Error::Shape) for a bias that is not
/// `[rows]`.
pub(crate) fn bitlinear_float_with_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    w: &TernaryMatrix,
    epilogue: &Epilogue<'_, X>,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    record(encoder, "bitlinear_float", x, w, epilogue, y.into(), true)
}

/// [`bitlinear_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `dy` or the output does not fit `w`.
pub(crate) fn bitlinear_backward_into<'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    dy: &Tensor<X>,
    w: &TernaryMatrix,
    dx: impl Into<Out<'y, Y>>,
) -> Result<()> {
    record(encoder, "bitlinear_backward", dy, w, &Epilogue::new(), dx.into(), false)
}

/// The product of `a` and W, transposed or not, and what kernels are told of it.
fn prepare<X: Float, Y: Float>(
    op: &'static str,
    a: &Tensor<X>,
    w: &TernaryMatrix,
    epilogue: &Epilogue<'_, X>,
    y: &Out<'_, Y>,
    transposed: bool,
) -> Result<(Product, Params)> {
    let [m, n, k] = product_shape(op, a.shape(), [w.rows(), w.columns()], y, transposed)?;
    let words = w.row_words();
    let params = Params {
        m: m as u32,
        n: n as u32,
        k: k as u32,
        words: words as u32,
        groups: (w.scales.len() / w.rows().max(1)) as u32,
        group_words: w.group().map_or(words, |size| size / CODES_PER_WORD).max(1) as u32,
        transposed: transposed.into(),
        add: y.adds().into(),
        biased: epilogue.has_bias().into(),
        activation: epilogue.code(),
    };
    Ok((Product { m, n, k, batch: 1, a_along_k: true, b_along_k: transposed }, params))
}

fn record<X: Float, Y: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    a: &Tensor<X>,
    w: &TernaryMatrix,
    epilogue: &Epilogue<'_, X>,
    y: Out<'_, Y>,
    transposed: bool,
) -> Result<()> {
    let (product, params) = prepare(op, a, w, epilogue, &y, transposed)?;
    let ([plain, finish], Product { m, n, k, .. }) = (plan(product), product);
    if epilogue.is_empty() {
        return encoder.dispatch(
            plain,
            &params,
            &[a, &w.codes, &w.scales, y.tensor()],
            Extent::products([n, m, 1], k),
        );
    }
    let bias = epilogue.bias_or(op, n, a)?;
    encoder.dispatch(
        finish,
        &params,
        &[a, &w.codes, &w.scales, y.tensor(), bias],
        Extent::products([n, m, 1], k),
    )
}
