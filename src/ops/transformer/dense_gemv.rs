//! The head: `x` `[m, k]` times a dense matrix `[n, k]`, whose bytes are the cost; made for few tokens.

#[cfg(test)]
use super::attention::dot;
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, REDUCE, Source, Work},
    },
    msl,
    ops::tensor::pad_rows::{pad_rows, quads_by_place},
    params,
    weights::dense::{DenseElement, DenseMatrix, PackedDense},
    wgsl,
};
use rayon::prelude::*;

params! { struct Params { rows: u32, tokens: u32, blocks: u32, add: u32 } }

const BINDINGS: &[Binding] = &[read("table", U32), read("table_scale", F32), read("x", F32), read_write("y", F32)];

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
            const fn gemv(source: Source, tokens: u32) -> Source {
                let (products, bytes) = (4 * tokens * $elements, 4 * 16 + 4 * tokens * $elements);
                let source = source.workgroup_size([256, 1, 1]).tile([32, tokens, 1]).constants(&[("ROWS", 4)]);
                source.work(Work::new(products, "products", bytes, 2 * products))
            }
            const fn wgsl(tokens: u32) -> Source {
                gemv(Source::wgsl(WGSL), tokens).workgroup_bytes(1024)
            }
            const fn metal(tokens: u32) -> Source {
                gemv(Source::msl(METAL), tokens)
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

pub(super) const KERNELS: &[&Kernel] = &[
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

/// `x` `[m, k]` times `w` `[n, k]` as `[m, n]`, in `f32`.
///
/// # Errors
/// As [`dense_gemv_into`].
pub fn dense_gemv(encoder: &mut Encoder, x: &Tensor<f32>, w: &DenseMatrix) -> Result<Tensor<f32>> {
    let y = Tensor::uninit(encoder.context(), [x.shape().as_matrix().0, w.rows()])?;
    dense_gemv_into(encoder, x, w, &y)?;
    Ok(y)
}

/// [`dense_gemv`] into a tensor of the caller, `[m, n]`. Where rows of `w` are not whole groups of 16 bytes, a dispatch more pads `x` as `w` is; for
/// several tokens, one more lays `x` out. On a device, a token's products are the same bits alone and in company.
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
    let family = match w.element() {
        DenseElement::F32 => &OF_F32,
        DenseElement::F16 => &OF_F16,
        DenseElement::Bf16 => &OF_BF16,
        DenseElement::Int8 => &OF_INT8,
    };
    let (tokens, blocks) = (m as u32, w.blocks() as u32);
    let (kernel, x) = match m {
        0..=1 => (&family[0], x),
        2..=4 => (&family[1], quads_by_place(encoder, &x, w.blocks())?),
        _ => (&family[2], quads_by_place(encoder, &x, w.blocks())?),
    };
    let params = Params { rows: w.rows() as u32, tokens, blocks, add: y.adds().into() };
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
    if stride == 0 {
        return Ok(vec![0.0; m * n]);
    }
    let mut by_row = vec![0f32; n * m];
    by_row.par_chunks_mut(m.max(1) * TASK_ROWS).enumerate().for_each(|(task, outputs)| {
        let words = &w.words()[task * TASK_ROWS * stride..][..outputs.len() / m * stride];
        match w.element() {
            DenseElement::F32 => by_f32(bytemuck::cast_slice(words), x, k, outputs),
            DenseElement::F16 => by_f16(bytemuck::cast_slice(words), x, k, outputs),
            DenseElement::Bf16 => by_bf16(bytemuck::cast_slice(words), x, k, outputs),
            DenseElement::Int8 => by_int8(bytemuck::cast_slice(words), x, k, outputs),
        }
        for (i, outputs) in outputs.chunks_exact_mut(m).enumerate() {
            let scale = w.scales().get(task * TASK_ROWS + i).copied().unwrap_or(1.0);
            outputs.iter_mut().for_each(|y| *y *= scale);
        }
    });
    if m == 1 {
        return Ok(by_row);
    }
    Ok((0..m * n).map(|at| by_row[at % n * m + at / n]).collect())
}

/// Rows that are worth being given to another thread.
const TASK_ROWS: usize = 64;

/// Rows whose sums wait for each other's loads, not for their own last sum.
const ROWS: usize = 4;

/// Running sums of a product, as of [`dot`](super::attention::dot).
const SUMS: usize = 8;

/// Compiles `by_rows` for an element, and that for several instruction sets.
macro_rules! by_rows {
    ($name:ident, $element:ty, $wide:expr) => {
        #[multiversion::multiversion(targets = "simd")]
        fn $name(rows: &[$element], x: &[f32], k: usize, y: &mut [f32]) {
            by_rows(rows, x, k, y, $wide);
        }
    };
}
by_rows!(by_f32, f32, |v| v);
by_rows!(by_f16, u16, half_to_f32);
by_rows!(by_bf16, u16, |v| f32::from_bits(u32::from(v) << 16));
by_rows!(by_int8, i8, f32::from);

/// `rows` `[n, padded k]` times `x` `[m, k]` as `[n, m]`.
#[inline(always)]
fn by_rows<T: Copy>(rows: &[T], x: &[f32], k: usize, y: &mut [f32], wide: impl Fn(T) -> f32 + Copy) {
    let m = x.len() / k;
    let padded = rows.len() / (y.len() / m);
    let mut wider = vec![0f32; if m > 2 { ROWS * k } else { 0 }];
    for (rows, y) in rows.chunks(ROWS * padded).zip(y.chunks_mut(ROWS * m)) {
        if y.len() < ROWS * m {
            for (r, row) in rows.chunks_exact(padded).enumerate() {
                x.chunks_exact(k).enumerate().for_each(|(token, x)| y[r * m + token] = dots([&row[..k]], x, wide)[0]);
            }
            continue;
        }
        // For more than two tokens, it pays to convert the rows first.
        for (wider, row) in wider.chunks_exact_mut(k).zip(rows.chunks_exact(padded)) {
            wider.iter_mut().zip(row).for_each(|(to, &v)| *to = wide(v));
        }
        for (token, x) in x.chunks_exact(k).enumerate() {
            let products: [f32; ROWS] = if m > 2 {
                dots(std::array::from_fn(|r| &wider[r * k..][..k]), x, |v| v)
            } else {
                dots(std::array::from_fn(|r| &rows[r * padded..][..k]), x, wide)
            };
            products.iter().enumerate().for_each(|(r, product)| y[r * m + token] = *product);
        }
    }
}

/// Products of some rows with `x`, each in the order of [`dot`](super::attention::dot).
#[inline(always)]
fn dots<T: Copy, const R: usize>(rows: [&[T]; R], x: &[f32], wide: impl Fn(T) -> f32 + Copy) -> [f32; R] {
    let (x, x_rest) = x.as_chunks::<SUMS>();
    let parts = rows.map(|row| row.as_chunks::<SUMS>());
    let rows = parts.map(|(whole, _)| &whole[..x.len()]);
    let mut sums = [[0f32; SUMS]; R];
    for (c, x) in x.iter().enumerate() {
        for r in 0..R {
            for i in 0..SUMS {
                sums[r][i] += wide(rows[r][c][i]) * x[i];
            }
        }
    }
    std::array::from_fn(|r| sums[r].iter().sum::<f32>() + parts[r].1.iter().zip(x_rest).map(|(&v, x)| wide(v) * x).sum::<f32>())
}

/// The bits of a half as a float, in a form that compilers turn into vectors: its exponent is moved by a product, which is right for subnormals too.
#[inline(always)]
fn half_to_f32(bits: u16) -> f32 {
    const TO_112: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(bits & 0x7fff);
    let finite = f32::from_bits(magnitude << 13) * TO_112;
    // Infinities and NaN have the largest exponent in either type.
    let special = f32::from_bits(0x7f80_0000 | magnitude << 13);
    let value = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(value.to_bits() | u32::from(bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn halves_are_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (half_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{bits:#x}: {found}, not {expected}");
        }
    }

    #[test]
    fn products_are_added_up_in_the_order_of_dot() {
        let number = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 7.0;
        for (m, n, k) in [(1, 9, 67), (3, 130, 40), (2, 3, 5), (5, 64, 256)] {
            let (x, w): (Vec<_>, Vec<_>) = ((0..m * k).map(number).collect(), (0..n * k).map(|i| number(i + 5)).collect());
            let halves: Vec<u8> = w.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
            let bf16s: Vec<u8> = w.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
            let floats = PackedDense::from_f32(n, k, &w).unwrap();
            let others = [(DenseElement::F16, halves), (DenseElement::Bf16, bf16s)];
            let others = others.map(|(element, bytes)| PackedDense::from_bytes(element, n, k, &bytes).unwrap());
            for w in others.into_iter().chain([floats.quantize(), floats]) {
                let y = dense_gemv_cpu(&x, &w).unwrap();
                for (at, y) in y.iter().enumerate() {
                    let (row, token) = (w.row(at % n), at / n);
                    // Codes are multiplied first, then scaled.
                    let scale = w.scales().get(at % n).copied();
                    let codes: Vec<f32> = row.iter().map(|v| scale.map_or(*v, |scale| (v / scale).round())).collect();
                    let expected = dot(&codes, &x[token * k..][..k]) * scale.unwrap_or(1.0);
                    assert_eq!(y.to_bits(), expected.to_bits(), "{:?} {m} {n} {k}: {at}", w.element());
                }
            }
        }
    }
}
