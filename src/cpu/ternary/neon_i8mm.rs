//! Products with the matrix products of Armv8.6.

use super::{
    neon_dot,
    tile::multiply,
    tokens::{Column, Tokens},
};
use crate::weights::ternary::interleaved::{InterleavedTernary, LANES, Lanes};
use std::ops::Range;

use std::arch::{aarch64::*, asm};

multiply!(target_feature(enable = "neon,dotprod,i8mm"));

/// The sums of two rows and two tokens, with the products of eight columns added: smmla, which
/// has no stable intrinsic.
#[allow(unsafe_code)]
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn add_products(mut acc: int32x4_t, rows: uint32x4_t, tokens: int8x16_t) -> int32x4_t {
    // SAFETY: registers alone, and the instruction is there where this function may be called.
    unsafe {
        asm!(
            "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) acc, in(vreg) rows, in(vreg) tokens,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

#[target_feature(enable = "neon,dotprod,i8mm")]
fn sums<const T: usize>(words: &[Lanes], x: [&[Column]; T]) -> [[i32; LANES]; T] {
    // A token without another lies as it does elsewhere.
    if T == 1 {
        return neon_dot::sums(words, x);
    }
    let x = x.map(|x| &x[..words.len()]);
    let mut sums = [[0; LANES]; T];
    // Eight rows at a time: sums of eight tokens are 16 of 32 registers, the rows' columns 8.
    for half in 0..2 {
        // By pairs of rows, and of tokens.
        let mut acc = [[vdupq_n_s32(0); T]; 4];
        for (j, word) in words.iter().enumerate() {
            let quarters = &bytemuck::cast::<_, [uint8x16_t; 4]>(word.0)[2 * half..];
            for q in 0..2 {
                let [a, b, c, d] =
                    neon_dot::fields(quarters[q]).map(|field| vreinterpretq_u32_u8(field));
                // Two rows a vector, with columns 0 to 7, and 8 to 15.
                let rows =
                    [[vzip1q_u32(a, b), vzip1q_u32(c, d)], [vzip2q_u32(a, b), vzip2q_u32(c, d)]];
                for pair in 0..T / 2 {
                    let tokens: [int8x16_t; 2] =
                        [bytemuck::cast(x[2 * pair][j]), bytemuck::cast(x[2 * pair + 1][j])];
                    for r in 0..2 {
                        let acc = &mut acc[2 * q + r][pair];
                        *acc = add_products(
                            add_products(*acc, rows[r][0], tokens[0]),
                            rows[r][1],
                            tokens[1],
                        );
                    }
                }
            }
        }
        for (r, acc) in acc.into_iter().enumerate() {
            for (pair, acc) in acc.into_iter().take(T / 2).enumerate() {
                let row = 8 * half + 2 * r;
                [
                    sums[2 * pair][row],
                    sums[2 * pair + 1][row],
                    sums[2 * pair][row + 1],
                    sums[2 * pair + 1][row + 1],
                ] = bytemuck::cast(acc);
            }
        }
    }
    sums
}
