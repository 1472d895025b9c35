//! Products with AVX-512 VNNI.

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

multiply!(target_feature(enable = "avx512f,avx512bw,avx512vnni"));

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn sums<const T: usize>(words: &[Lanes], x: [&[Column]; T]) -> [[i32; LANES]; T] {
    match T {
        1 => [single(words, x[0]); T],
        2..8 => apart(words, x),
        _ => together(words, x),
    }
}

/// Of many tokens, each with two sums: no product waits for the one before it.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn together<const T: usize>(words: &[Lanes], x: [&[Column]; T]) -> [[i32; LANES]; T] {
    let x = x.map(|x| &x[..words.len()]);
    let mask = _mm512_set1_epi8(3);
    let mut acc = [[_mm512_setzero_si512(); 2]; T];
    for (j, word) in words.iter().enumerate() {
        let word: __m512i = bytemuck::cast(word.0);
        let fields = [
            _mm512_and_si512(word, mask),
            _mm512_and_si512(_mm512_srli_epi16::<2>(word), mask),
            _mm512_and_si512(_mm512_srli_epi16::<4>(word), mask),
            _mm512_and_si512(_mm512_srli_epi16::<6>(word), mask),
        ];
        for (acc, x) in acc.iter_mut().zip(&x) {
            for (f, &field) in fields.iter().enumerate() {
                acc[f % 2] =
                    _mm512_dpbusd_epi32(acc[f % 2], field, _mm512_set1_epi32(dword(&x[j], f)));
            }
        }
    }
    acc.map(|[a, b]| bytemuck::cast(_mm512_add_epi32(a, b)))
}

/// Of few tokens: fields have a sum each, as in `single`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn apart<const T: usize>(words: &[Lanes], x: [&[Column]; T]) -> [[i32; LANES]; T] {
    let x = x.map(|x| &x[..words.len()]);
    let masks = [3, 12, 48, -64].map(|mask| _mm512_set1_epi8(mask));
    let mut acc = [[_mm512_setzero_si512(); 4]; T];
    for (j, word) in words.iter().enumerate() {
        let word: __m512i = bytemuck::cast(word.0);
        for f in 0..4 {
            let field = _mm512_and_si512(word, masks[f]);
            for (acc, x) in acc.iter_mut().zip(&x) {
                acc[f] = _mm512_dpbusd_epi32(acc[f], field, _mm512_set1_epi32(dword(&x[j], f)));
            }
        }
    }
    acc.map(|fields| bytemuck::cast(added(fields)))
}

/// Of one token: fields are masked in place, which makes them 4^f times as large, and have a
/// sum each.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn single(words: &[Lanes], x: &[Column]) -> [i32; LANES] {
    let masks = [3, 12, 48, -64].map(|mask| _mm512_set1_epi8(mask));
    let mut acc = [[_mm512_setzero_si512(); 4]; 2];
    let step = |acc: &mut [__m512i; 4], word: &Lanes, x: &Column| {
        let word: __m512i = bytemuck::cast(word.0);
        for f in 0..4 {
            acc[f] = _mm512_dpbusd_epi32(
                acc[f],
                _mm512_and_si512(word, masks[f]),
                _mm512_set1_epi32(dword(x, f)),
            );
        }
    };
    let (pairs, last) = words.as_chunks::<2>();
    let (x_pairs, x_last) = x.as_chunks::<2>();
    for (words, x) in pairs.iter().zip(x_pairs) {
        // A page ahead, since the processor's own prefetcher ends at every page. (A token alone
        // waits for nothing but memory.)
        prefetch_after(words, 4096);
        step(&mut acc[0], &words[0], &x[0]);
        step(&mut acc[1], &words[1], &x[1]);
    }
    for (word, x) in last.iter().zip(x_last) {
        step(&mut acc[0], word, x);
    }
    bytemuck::cast(added(std::array::from_fn(|f| _mm512_add_epi32(acc[0][f], acc[1][f]))))
}

/// The sums of fields that were masked in place, as one.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn added([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let low = _mm512_add_epi32(a, _mm512_srai_epi32::<2>(b));
    _mm512_add_epi32(low, _mm512_add_epi32(_mm512_srai_epi32::<4>(c), _mm512_srai_epi32::<6>(d)))
}
