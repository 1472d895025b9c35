//! Products with AVX-VNNI.

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

multiply!(target_feature(enable = "avx2,avxvnni"));

#[target_feature(enable = "avx2,avxvnni")]
fn sums<const T: usize>(words: &[Lanes], x: [&[Column]; T]) -> [[i32; LANES]; T] {
    let x = x.map(|x| &x[..words.len()]);
    match T {
        1 => [single(words, x[0]); T],
        // Sums of eight tokens and eight rows are half of the registers; fewer tokens have
        // those of all rows under way together.
        2..8 => halves::<T, 2>(words, x, 0).map(bytemuck::cast),
        _ => {
            let halves = [0, 1].map(|half| halves::<T, 1>(words, x, half));
            std::array::from_fn(|t| bytemuck::cast([halves[0][t][0], halves[1][t][0]]))
        }
    }
}

/// The sums of H halves of the rows, from one of them on.
#[target_feature(enable = "avx2,avxvnni")]
fn halves<const T: usize, const H: usize>(
    words: &[Lanes],
    x: [&[Column]; T],
    first: usize,
) -> [[__m256i; H]; T] {
    let mask = _mm256_set1_epi8(3);
    let mut acc = [[_mm256_setzero_si256(); H]; T];
    for (j, word) in words.iter().enumerate() {
        for half in 0..H {
            let word = bytemuck::cast::<_, [__m256i; 2]>(word.0)[first + half];
            let fields = [
                _mm256_and_si256(word, mask),
                _mm256_and_si256(_mm256_srli_epi16::<2>(word), mask),
                _mm256_and_si256(_mm256_srli_epi16::<4>(word), mask),
                _mm256_and_si256(_mm256_srli_epi16::<6>(word), mask),
            ];
            for (acc, x) in acc.iter_mut().zip(&x) {
                for (f, &field) in fields.iter().enumerate() {
                    acc[half] = _mm256_dpbusd_avx_epi32(
                        acc[half],
                        field,
                        _mm256_set1_epi32(dword(&x[j], f)),
                    );
                }
            }
        }
    }
    acc
}

/// Of one token: fields are masked in place, which makes them 4^f times as large, and have a
/// sum each.
#[target_feature(enable = "avx2,avxvnni")]
fn single(words: &[Lanes], x: &[Column]) -> [i32; LANES] {
    let masks = [3, 12, 48, -64].map(|mask| _mm256_set1_epi8(mask));
    let mut acc = [[_mm256_setzero_si256(); 4]; 2];
    for (word, x) in words.iter().zip(x) {
        prefetch_after(std::slice::from_ref(word), 4096);
        let of_word: [__m256i; 2] = bytemuck::cast(word.0);
        for f in 0..4 {
            let x = _mm256_set1_epi32(dword(x, f));
            for half in 0..2 {
                acc[half][f] = _mm256_dpbusd_avx_epi32(
                    acc[half][f],
                    _mm256_and_si256(of_word[half], masks[f]),
                    x,
                );
            }
        }
    }
    bytemuck::cast(acc.map(|[a, b, c, d]| {
        let low = _mm256_add_epi32(a, _mm256_srai_epi32::<2>(b));
        _mm256_add_epi32(
            low,
            _mm256_add_epi32(_mm256_srai_epi32::<4>(c), _mm256_srai_epi32::<6>(d)),
        )
    }))
}
