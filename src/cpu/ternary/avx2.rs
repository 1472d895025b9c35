//! Products with AVX2.

use super::{
    tile::{dword, multiply},
    tokens::{Column, Tokens},
};
use crate::{
    cpu::prefetch::prefetch_after,
    weights::ternary::interleaved::{InterleavedTernary, LANES, Lanes},
};
use std::ops::Range;

use std::arch::x86_64::*;

multiply!(target_feature(enable = "avx2"));

/// Words whose products a 16-bit number holds: eight of at most 2 · 128 each come to 2048 a
/// word.
const SHORT: usize = 15;

#[target_feature(enable = "avx2")]
fn sums<const T: usize>(words: &[Lanes], x: [&[Column]; T]) -> [[i32; LANES]; T] {
    let x = x.map(|x| &x[..words.len()]);
    if T <= 2 {
        return halves::<T, 2>(words, x, 0).map(bytemuck::cast);
    }
    let halves = [0, 1].map(|half| halves::<T, 1>(words, x, half));
    std::array::from_fn(|t| bytemuck::cast([halves[0][t][0], halves[1][t][0]]))
}

/// The sums of H halves of the rows, from one of them on.
#[target_feature(enable = "avx2")]
fn halves<const T: usize, const H: usize>(
    words: &[Lanes],
    x: [&[Column]; T],
    first: usize,
) -> [[__m256i; H]; T] {
    let (mask, ones) = (_mm256_set1_epi8(3), _mm256_set1_epi16(1));
    let mut acc = [[_mm256_setzero_si256(); H]; T];
    for start in (0..words.len()).step_by(SHORT) {
        let mut short = [[_mm256_setzero_si256(); H]; T];
        for j in start..words.len().min(start + SHORT) {
            if T == 1 {
                prefetch_after(&words[j..=j], 4096);
            }
            for half in 0..H {
                let word = bytemuck::cast::<_, [__m256i; 2]>(words[j].0)[first + half];
                let fields = [
                    _mm256_and_si256(word, mask),
                    _mm256_and_si256(_mm256_srli_epi16::<2>(word), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(word), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<6>(word), mask),
                ];
                for (short, x) in short.iter_mut().zip(&x) {
                    let product = |f: usize| {
                        _mm256_maddubs_epi16(fields[f], _mm256_set1_epi32(dword(&x[j], f)))
                    };
                    let (low, high) = (
                        _mm256_add_epi16(product(0), product(1)),
                        _mm256_add_epi16(product(2), product(3)),
                    );
                    short[half] = _mm256_add_epi16(short[half], _mm256_add_epi16(low, high));
                }
            }
        }
        for (acc, short) in acc.as_flattened_mut().iter_mut().zip(short.as_flattened()) {
            *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(*short, ones));
        }
    }
    acc
}
