//! Products with the dot products of Armv8.4.

use super::{
    tile::multiply,
    tokens::{Column, Tokens},
};
use crate::weights::ternary::interleaved::{InterleavedTernary, LANES, Lanes};
use std::ops::Range;

use std::arch::{aarch64::*, asm};

multiply!(target_feature(enable = "neon,dotprod"));

/// The four fields of four rows' words.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn fields(word: uint8x16_t) -> [uint8x16_t; 4] {
    let mask = vdupq_n_u8(3);
    [
        vandq_u8(word, mask),
        vandq_u8(vshrq_n_u8::<2>(word), mask),
        vandq_u8(vshrq_n_u8::<4>(word), mask),
        vshrq_n_u8::<6>(word),
    ]
}

/// Four rows' sums, with the products of four fields and their activations added: sdot, which
/// has no stable intrinsic, adds four products of signed bytes to each of four sums.
#[allow(unsafe_code)]
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(mut acc: int32x4_t, [a, b, c, d]: [uint8x16_t; 4], x: int8x16_t) -> int32x4_t {
    // SAFETY: registers alone, and the instruction is there where this function may be called.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {5:v}.4b[0]",
            "sdot {0:v}.4s, {2:v}.16b, {5:v}.4b[1]",
            "sdot {0:v}.4s, {3:v}.16b, {5:v}.4b[2]",
            "sdot {0:v}.4s, {4:v}.16b, {5:v}.4b[3]",
            inout(vreg) acc, in(vreg) a, in(vreg) b, in(vreg) c, in(vreg) d, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

#[target_feature(enable = "neon,dotprod")]
pub(super) fn sums<const T: usize>(words: &[Lanes], x: [&[Column]; T]) -> [[i32; LANES]; T] {
    let x = x.map(|x| &x[..words.len()]);
    match T {
        1 => [single(words, x[0]); T],
        2..8 => quarters::<T, 4>(words, x, 0).map(bytemuck::cast),
        _ => {
            let halves = [0, 2].map(|first| quarters::<T, 2>(words, x, first));
            std::array::from_fn(|t| bytemuck::cast([halves[0][t], halves[1][t]]))
        }
    }
}

/// The sums of Q quarters of the rows, from one of them on: as many as registers hold, since a
/// product that is added to another's sum waits for it.
#[target_feature(enable = "neon,dotprod")]
fn quarters<const T: usize, const Q: usize>(
    words: &[Lanes],
    x: [&[Column]; T],
    first: usize,
) -> [[int32x4_t; Q]; T] {
    let mut acc = [[vdupq_n_s32(0); Q]; T];
    for (j, word) in words.iter().enumerate() {
        for q in 0..Q {
            let fields = fields(bytemuck::cast::<_, [uint8x16_t; 4]>(word.0)[first + q]);
            for (acc, x) in acc.iter_mut().zip(&x) {
                acc[q] = dot(acc[q], fields, bytemuck::cast(x[j]));
            }
        }
    }
    acc
}

/// Four rows' four sums, each with the products of a field and its activations added.
#[allow(unsafe_code)]
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_each(acc: &mut [int32x4_t; 4], [a, b, c, d]: [uint8x16_t; 4], x: int8x16_t) {
    let [of_a, of_b, of_c, of_d] = acc;
    // SAFETY: registers alone, and the instruction is there where this function may be called.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {4:v}.16b, {8:v}.4b[0]",
            "sdot {1:v}.4s, {5:v}.16b, {8:v}.4b[1]",
            "sdot {2:v}.4s, {6:v}.16b, {8:v}.4b[2]",
            "sdot {3:v}.4s, {7:v}.16b, {8:v}.4b[3]",
            inout(vreg) *of_a, inout(vreg) *of_b, inout(vreg) *of_c, inout(vreg) *of_d,
            in(vreg) a, in(vreg) b, in(vreg) c, in(vreg) d, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// Of one token: fields have a sum each, sixteen in all, so that no product waits for the one
/// before it. They are masked in place, which makes them 4^f times as large, but for the last,
/// which would not be a signed byte.
#[target_feature(enable = "neon,dotprod")]
fn single(words: &[Lanes], x: &[Column]) -> [i32; LANES] {
    let masks = [3, 12, 48].map(|mask| vdupq_n_u8(mask));
    let mut acc = [[vdupq_n_s32(0); 4]; 4];
    for (word, x) in words.iter().zip(x) {
        let x = bytemuck::cast(*x);
        for (acc, word) in acc.iter_mut().zip(bytemuck::cast::<_, [uint8x16_t; 4]>(word.0)) {
            let [a, b, c] = masks.map(|mask| vandq_u8(word, mask));
            dot_each(acc, [a, b, c, vshrq_n_u8::<6>(word)], x);
        }
    }
    bytemuck::cast(acc.map(|[a, b, c, d]| {
        vaddq_s32(vaddq_s32(a, vshrq_n_s32::<2>(b)), vaddq_s32(vshrq_n_s32::<4>(c), d))
    }))
}
