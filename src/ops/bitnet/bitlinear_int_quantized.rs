//! BitLinear with weights of 1, 2, 4 or 8 bits and int8 activations: y = (1/a)·Σ_g scale_g·(Σ
//! xq·code - zero_g·Σ xq), sums within groups of columns.
//!
//! Sums within a group are exact integers, and groups are added in their order, so a result depends
//! on its row and its token alone.

use super::{
    activations::{Layout, QuantizedActivations},
    bitlinear_product::{PRODUCT_PLAIN, Product},
    host_activations::HostActivations,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, recording::Extent, tensor::Bind},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, HOLE, Part, Source, Work},
    },
    msl,
    ops::tensor::{
        epilogue::{Epilogue, Filling, finished},
        matmul_kernels::Forms,
    },
    params,
    weights::int::{affine::Affine, bits::Bits, matrix::IntMatrix, packed::PackedInt},
    wgsl,
};
use rayon::prelude::*;

params! {
    struct Params {
        rows: u32, tokens: u32, columns: u32, words: u32, x_words: u32, groups: u32, group_size: u32, bits: u32, add: u32,
        biased: u32, activation: u32,
    }
}

/// From this many tokens on, a workgroup makes several at a time.
const MANY: usize = 4;

const BINDINGS: &[Binding] = &[
    read("codes", U32),
    read("w_scale", F32),
    read("w_zero", F32),
    read("x", U32),
    read("x_scale", F32),
    read_write("y", Float("Y")),
    read("bias", Float("Y")),
];
const PARTS: &[Part] = wgsl!["shared/ids", EXACT, HOLE, "bitnet/bitlinear_int_quantized"];
const METAL: &[Part] =
    msl!["shared/prelude", "shared/exact", HOLE, "bitnet/bitlinear_int_quantized"];

const fn forms(names: [&'static str; 2], sources: &'static [Source]) -> Forms {
    const FINISH: Filling = finished!("Y", 6, 7, wgsl ["bitnet/product_finish"], msl []);
    const PRODUCT: Product = Product {
        params: [Params::FIELDS; 2],
        bindings: BINDINGS,
        fillings: [PRODUCT_PLAIN, FINISH],
    };
    PRODUCT.forms(names, "bitlinear_int_quantized", sources)
}

/// 64 rows of `tokens` tokens; a turn is 32 columns of a row.
const fn source(source: Source, tokens: u32, workgroup_bytes: u32) -> Source {
    let source =
        source.tile([64, tokens, 1]).constants(&[("UNITS", 4)]).workgroup_bytes(workgroup_bytes);
    source.work(Work::new(32 * tokens, "weights", 0, 64 * tokens))
}

static ONE: Forms = forms(
    ["bitlinear_int_quantized", "bitlinear_int_quantized_finish"],
    &[source(Source::wgsl(PARTS), 1, 8592), source(Source::msl(METAL), 1, 8976)],
);
static SEVERAL: Forms = forms(
    ["bitlinear_int_quantized_several", "bitlinear_int_quantized_several_finish"],
    &[source(Source::wgsl(PARTS), 8, 9600), source(Source::msl(METAL), 8, 12_672)],
);

pub(super) const KERNELS: &[&Kernel] = &[&ONE[0], &ONE[1], &SEVERAL[0], &SEVERAL[1]];

/// [`bitlinear_int_quantized_with`] into a tensor of the caller. What is finished is added to an
/// [`Out::add`], which so serves for a residual.
///
/// # Errors
/// As [`bitlinear_int_quantized_into`]; [`Error::Shape`] for a bias that is not `[rows]`.
pub(crate) fn bitlinear_int_quantized_with_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &QuantizedActivations,
    w: &IntMatrix,
    epilogue: &Epilogue<'_, T>,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    let (y, m, n, k) = (y.into(), x.tokens(), w.rows(), w.columns());
    if x.features() != k {
        return Err(Error::Shape {
            op: OP,
            what: "x",
            expected: format!("[m, {k}]"),
            found: [m, x.features()].into(),
        });
    }
    y.check(OP, m, n)?;
    if x.layout() != Layout::Int8 {
        return Err(Error::Invalid {
            op: OP,
            what: format!("activations are in the {} layout; int8 is needed", x.layout()),
        });
    }
    x.layout().check_features(OP, k, encoder)?;
    check_sums(w.bits(), w.group_size().min(k))?;
    let params = Params {
        rows: n as u32,
        tokens: m as u32,
        columns: k as u32,
        words: w.row_words() as u32,
        x_words: Layout::Int8.words(k) as u32,
        groups: w.groups() as u32,
        group_size: w.group_size() as u32,
        bits: w.bits().count() as u32,
        add: y.adds().into(),
        biased: epilogue.has_bias().into(),
        activation: epilogue.code(),
    };
    let bindings: [&dyn Bind; 6] = [&w.codes, &w.scales, &w.zeros, &x.codes, &x.scales, y.tensor()];
    let [plain, finish] = if m < MANY { &ONE } else { &SEVERAL };
    if epilogue.is_empty() {
        return encoder.dispatch(plain, &params, &bindings, Extent::products([n, m, 1], k));
    }
    let bias = epilogue.bound_bias(OP, n, encoder.context())?;
    encoder.dispatch(
        finish,
        &params,
        &[&bindings[..], &[&bias]].concat(),
        Extent::products([n, m, 1], k),
    )
}

const OP: &str = "bitlinear_int_quantized";

/// |Σ xq·code| ≤ 128·(2^bits - 1)·columns must be an i32.
fn check_sums(bits: Bits, columns: usize) -> Result<()> {
    let most = i32::MAX as usize / (128 * usize::from(bits.max_code()));
    if columns <= most {
        return Ok(());
    }
    let what = format!(
        "groups of {columns} columns of {} bits; integer sums are exact up to {most}",
        bits.count()
    );
    Err(Error::Invalid { op: OP, what })
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`BitLinear`](crate::bitnet::BitLinear) with integer weights and int8
    /// activations, `[tokens, rows]`: the same integers, in the same order.
    ///
    /// # Errors
    /// [`Error::Shape`] if `x` does not fit `w`; [`Error::Length`] if `x` has not as many codes and
    /// scales as it says.
    pub fn bitlinear_int_quantized(x: &HostActivations, w: &PackedInt) -> Result<Vec<f32>> {
        let (m, n, k) = (x.tokens, w.rows(), w.columns());
        if x.features != k {
            return Err(Error::Shape {
                op: OP,
                what: "x",
                expected: format!("[m, {k}]"),
                found: [m, x.features].into(),
            });
        }
        if m.checked_mul(k) != Some(x.codes.len()) || x.scales.len() != m {
            return Err(Error::Length { shape: [m, k].into(), found: x.codes.len() });
        }
        let Affine { group, scales, zeros } = w.affine();
        let (size, groups) = (group.unwrap_or(k).max(1), scales.len() / n.max(1));
        check_sums(w.bits(), size.min(k))?;
        // Rows are the parallel dimension, so a row's outputs are made together and transposed at the
        // end.
        let mut by_row = vec![0.0; n * m];
        by_row.par_chunks_mut(m.max(1)).enumerate().for_each(|(row, outputs)| {
            let codes: Vec<u8> = (0..k).map(|column| w.code(row, column)).collect();
            for (token, out) in outputs.iter_mut().enumerate() {
                let pairs = codes.chunks(size).zip(x.row(token).chunks(size)).enumerate();
                let sum = pairs.fold(0.0, |sum: f32, (g, (codes, x))| {
                    let products: i32 =
                        codes.iter().zip(x).map(|(&code, &x)| i32::from(code) * i32::from(x)).sum();
                    let x_sum: i32 = x.iter().map(|&x| i32::from(x)).sum();
                    let (scale, zero) = (scales[row * groups + g], zeros[row * groups + g]);
                    scale.mul_add(products as f32 - zero * x_sum as f32, sum)
                });
                *out = sum / x.scales[token];
            }
        });
        Ok((0..m * n).map(|at| by_row[at % n * m + at / n]).collect())
    }
}
