//! Dense matrices times activations: the bits of
//! [`dense_gemv`](crate::reference::dense_gemv), whose sums have eight running parts. A
//! vector has the eight of one row and token; several rows share the activations that are loaded,
//! several tokens the weights.

use super::{
    f16_convert::f16_to_f32,
    isa::{Extension, Isa},
    prefetch::prefetch,
    threads::by_chunks,
};
use crate::{
    error::{Error, Result},
    weights::dense::{DenseElement, PackedDense},
};

/// Running sums of a product.
const SUMS: usize = 8;

/// Rows whose sums wait for each other's loads, not for their own last sum.
const ROWS: usize = 4;

/// Bytes of weights that are worth being given to another thread.
const TASK_BYTES: usize = 32 << 10;

/// `x` `[tokens, columns]` times `w` `[rows, columns]` as `[tokens, rows]`, with instructions that
/// this processor has.
pub fn gemv(isa: Isa, x: &[f32], w: &PackedDense) -> Result<Vec<f32>> {
    let (n, k) = (w.rows(), w.columns().max(1));
    if !x.len().is_multiple_of(k) {
        return Err(Error::Length { shape: [x.len() / k, k].into(), found: x.len() });
    }
    let (m, stride) = (x.len() / k, w.element().row_words(w.columns()));
    if m == 0 || stride == 0 {
        return Ok(vec![0.0; m * n]);
    }
    let rows = (TASK_BYTES / (4 * stride)).max(1).next_multiple_of(ROWS);
    let mut by_row = vec![0f32; n * m];
    by_chunks(&mut by_row, m * rows, |first, y| {
        let first = first / m;
        multiply(isa, w.element(), &w.words()[first * stride..][..y.len() / m * stride], x, k, y);
        for (y, row) in y.chunks_exact_mut(m).zip(first..) {
            let scale = w.scales().get(row).copied().unwrap_or(1.0);
            y.iter_mut().for_each(|y| *y *= scale);
        }
    });
    if m == 1 {
        return Ok(by_row);
    }
    Ok((0..m * n).map(|at| by_row[at % n * m + at / n]).collect())
}

/// Rows of this element, `[n, padded k]`, times `x` `[m, k]` as `[n, m]`.
#[allow(unsafe_code)]
fn multiply(isa: Isa, element: DenseElement, rows: &[u32], x: &[f32], k: usize, y: &mut [f32]) {
    match isa.kind() {
        // SAFETY: only what the processor has becomes an `Isa`; all
        // of these have AVX2 and F16C.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx512Vnni | Extension::AvxVnni | Extension::Avx2 => unsafe {
            avx2::multiply(element, rows, x, k, y)
        },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Extension::NeonI8mm | Extension::NeonDot => unsafe {
            neon::multiply(element, rows, x, k, y)
        },
        Extension::Portable => portable::multiply(element, rows, x, k, y),
    }
}

/// What every instruction set does around its vectors: `zero`, `floats`, `f16s`, `bf16s` and
/// `codes`, which load eight numbers, `add_product` and `numbers`.
macro_rules! multiply {
    ($($attribute:meta)?) => {
        $(#[$attribute])?
        pub(super) fn multiply(element: DenseElement, rows: &[u32], x: &[f32], k: usize, y: &mut [f32]) {
            match element {
                DenseElement::F32 => by_f32(bytemuck::cast_slice(rows), x, k, y),
                DenseElement::F16 => by_f16(bytemuck::cast_slice(rows), x, k, y),
                DenseElement::Bf16 => by_bf16(bytemuck::cast_slice(rows), x, k, y),
                DenseElement::Int8 => by_int8(bytemuck::cast_slice(rows), x, k, y),
            }
        }

        by_element!(by_f32, f32, floats, |v| v $(, $attribute)?);
        by_element!(by_f16, u16, f16s, f16_to_f32 $(, $attribute)?);
        by_element!(by_bf16, u16, bf16s, |v| f32::from_bits(u32::from(v) << 16) $(, $attribute)?);
        by_element!(by_int8, i8, codes, f32::from $(, $attribute)?);
    };
}

/// The loops over rows and tokens of an element that `$load` makes a vector of, and `$wide` a
/// number.
macro_rules! by_element {
    ($name:ident, $element:ty, $load:ident, $wide:expr $(, $attribute:meta)?) => {
        $(#[$attribute])?
        fn $name(rows: &[$element], x: &[f32], k: usize, y: &mut [f32]) {
            let m = x.len() / k;
            let stride = rows.len() / (y.len() / m);
            for (rows, y) in rows.chunks(ROWS * stride).zip(y.chunks_mut(ROWS * m)) {
                if y.len() < ROWS * m {
                    for (row, y) in rows.chunks_exact(stride).zip(y.chunks_exact_mut(m)) {
                        for (token, y) in y.chunks_exact_mut(1).enumerate() {
                            tile::<1, 1>(row, stride, &x[token * k..], k, y, m);
                        }
                    }
                    continue;
                }
                let mut token = 0;
                while token < m {
                    let x = &x[token * k..];
                    token += match m - token {
                        1 => tile::<ROWS, 1>(rows, stride, x, k, &mut y[token..], m),
                        2 | 3 => tile::<ROWS, 2>(rows, stride, x, k, &mut y[token..], m),
                        _ => {
                            tile::<2, 4>(rows, stride, x, k, &mut y[token..], m);
                            tile::<2, 4>(&rows[2 * stride..], stride, x, k, &mut y[2 * m + token..], m)
                        }
                    };
                }
            }

            /// R rows times T tokens; gives T.
            $(#[$attribute])?
            fn tile<const R: usize, const T: usize>(rows: &[$element], stride: usize, x: &[f32], k: usize, y: &mut [f32], m: usize) -> usize {
                let rows: [_; R] = std::array::from_fn(|r| rows[r * stride..][..k].as_chunks::<SUMS>());
                let x: [_; T] = std::array::from_fn(|t| x[t * k..][..k].as_chunks::<SUMS>());
                let whole = k / SUMS;
                let (row_parts, x_parts) = (rows.map(|(row, _)| &row[..whole]), x.map(|(x, _)| &x[..whole]));
                let mut sums = [[zero(); T]; R];
                for c in 0..whole {
                    // As many bytes of the rows after these.
                    for line in (0..R * size_of::<[$element; SUMS]>()).step_by(64) {
                        let next = row_parts[0].as_ptr().cast::<$element>().wrapping_add(R * stride);
                        prefetch(next.wrapping_add(c * R * SUMS).wrapping_byte_add(line).cast());
                    }
                    let x: [_; T] = std::array::from_fn(|t| floats(&x_parts[t][c]));
                    for r in 0..R {
                        let weights = $load(&row_parts[r][c]);
                        for t in 0..T {
                            sums[r][t] = add_product(sums[r][t], weights, x[t]);
                        }
                    }
                }
                for r in 0..R {
                    for t in 0..T {
                        let rest = rows[r].1.iter().zip(x[t].1).map(|(&v, x)| $wide(v) * x);
                        y[r * m + t] = numbers(sums[r][t]).iter().sum::<f32>() + rest.sum::<f32>();
                    }
                }
                T
            }
        }
    };
}

mod portable {
    use super::*;

    multiply!();

    fn zero() -> [f32; SUMS] {
        [0.0; SUMS]
    }

    fn floats(v: &[f32; SUMS]) -> [f32; SUMS] {
        *v
    }

    fn f16s(v: &[u16; SUMS]) -> [f32; SUMS] {
        v.map(f16_to_f32)
    }

    fn bf16s(v: &[u16; SUMS]) -> [f32; SUMS] {
        v.map(|v| f32::from_bits(u32::from(v) << 16))
    }

    fn codes(v: &[i8; SUMS]) -> [f32; SUMS] {
        v.map(f32::from)
    }

    fn add_product(sum: [f32; SUMS], weights: [f32; SUMS], x: [f32; SUMS]) -> [f32; SUMS] {
        std::array::from_fn(|i| sum[i] + weights[i] * x[i])
    }

    fn numbers(sum: [f32; SUMS]) -> [f32; SUMS] {
        sum
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::*;
    use std::arch::x86_64::*;

    multiply!(target_feature(enable = "avx2,f16c"));

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn zero() -> __m256 {
        _mm256_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn floats(v: &[f32; SUMS]) -> __m256 {
        bytemuck::cast(*v)
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn f16s(v: &[u16; SUMS]) -> __m256 {
        _mm256_cvtph_ps(bytemuck::cast(*v))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn bf16s(v: &[u16; SUMS]) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bytemuck::cast(*v))))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn codes(v: &[i8; SUMS]) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytemuck::cast(*v))))
    }

    /// A product, rounded, and then added: the CPU reference does not fuse them.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn add_product(sum: __m256, weights: __m256, x: __m256) -> __m256 {
        _mm256_add_ps(sum, _mm256_mul_ps(weights, x))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn numbers(sum: __m256) -> [f32; SUMS] {
        bytemuck::cast(sum)
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::*;
    use std::arch::{aarch64::*, asm};

    multiply!(target_feature(enable = "neon"));

    type Eight = [float32x4_t; 2];

    #[inline]
    #[target_feature(enable = "neon")]
    fn zero() -> Eight {
        [vdupq_n_f32(0.0); 2]
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn floats(v: &[f32; SUMS]) -> Eight {
        bytemuck::cast(*v)
    }

    /// fcvtl, whose intrinsic is not stable.
    #[allow(unsafe_code)]
    #[inline]
    #[target_feature(enable = "neon")]
    fn f16s(v: &[u16; SUMS]) -> Eight {
        let v: uint16x8_t = bytemuck::cast(*v);
        let (low, high): (float32x4_t, float32x4_t);
        // SAFETY: registers alone.
        unsafe {
            asm!(
                "fcvtl {low:v}.4s, {v:v}.4h",
                "fcvtl2 {high:v}.4s, {v:v}.8h",
                v = in(vreg) v, low = out(vreg) low, high = lateout(vreg) high,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        [low, high]
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn bf16s(v: &[u16; SUMS]) -> Eight {
        let v: uint16x8_t = bytemuck::cast(*v);
        [
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(v))),
            vreinterpretq_f32_u32(vshll_high_n_u16::<16>(v)),
        ]
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn codes(v: &[i8; SUMS]) -> Eight {
        let v = vmovl_s8(bytemuck::cast(*v));
        [vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))]
    }

    /// Products, rounded, and then added: the CPU reference does not fuse them.
    #[inline]
    #[target_feature(enable = "neon")]
    fn add_product(sum: Eight, weights: Eight, x: Eight) -> Eight {
        [
            vaddq_f32(sum[0], vmulq_f32(weights[0], x[0])),
            vaddq_f32(sum[1], vmulq_f32(weights[1], x[1])),
        ]
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn numbers(sum: Eight) -> [f32; SUMS] {
        bytemuck::cast(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::reference;
    use half::{bf16, f16};

    #[test]
    fn every_instruction_set_equals_the_cpu_reference() {
        let number = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 7.0;
        for (m, n, k) in [
            (0, 3, 8),
            (1, 9, 67),
            (1, 8, 64),
            (3, 130, 40),
            (2, 3, 5),
            (7, 64, 256),
            (9, 6, 129),
            (2, 0, 4),
            (1, 4, 0),
            (1, 5, 8200),
        ] {
            let (x, w): (Vec<_>, Vec<_>) =
                ((0..m * k).map(number).collect(), (0..n * k).map(|i| number(i + 5)).collect());
            // Subnormal f16 too.
            let f16s: Vec<u8> = w
                .iter()
                .enumerate()
                .flat_map(|(i, v)| f16::from_f32(v / (1 << (i % 24)) as f32).to_le_bytes())
                .collect();
            let bf16s: Vec<u8> = w.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
            let floats = PackedDense::from_f32(n, k, &w).unwrap();
            let others = [(DenseElement::F16, f16s), (DenseElement::Bf16, bf16s)];
            let others = others
                .map(|(element, bytes)| PackedDense::from_bytes(element, n, k, &bytes).unwrap());
            for w in others.into_iter().chain([floats.quantize(), floats]) {
                let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                let expected = bits(reference::dense_gemv(&x, &w).unwrap());
                for isa in Isa::all() {
                    assert!(
                        bits(gemv(isa, &x, &w).unwrap()) == expected,
                        "{isa:?} {:?} {m} {n} {k}",
                        w.element()
                    );
                }
            }
        }
        assert!(matches!(
            gemv(Isa::best(), &[0.0; 3], &PackedDense::from_f32(1, 2, &[0.0; 2]).unwrap()),
            Err(Error::Length { .. })
        ));
    }
}
