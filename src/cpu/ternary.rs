//! Ternary matrices times quantised activations: the bits of
//! [`bitlinear_quantized_cpu`](crate::bitnet::bitlinear_quantized_cpu).
//!
//! A vector of sixteen rows' words (see [`InterleavedTernary`]) holds four fields; masked, each is
//! a code a byte, and meets four activations that are the same for all rows. Codes are value + 1,
//! so the sum of the activations is taken off at the end. Several tokens share what is loaded.

use super::isa::{Extension, Isa};
#[cfg(target_arch = "x86_64")]
use super::prefetch;
use crate::{
    error::Result,
    ops::bitnet::{HostActivations, rounded_block},
    weights::ternary::{
        interleaved::{InterleavedTernary, LANES, Lanes},
        layout::CODES_PER_WORD,
    },
};
use rayon::prelude::*;
use std::ops::Range;

/// The activations that meet a word.
type Column = [i8; CODES_PER_WORD];

/// Bytes of weights that are worth being given to another thread.
const TASK_BYTES: usize = 32 << 10;

/// Activations as the kernels read them.
struct Tokens {
    /// `[tokens, stride]`; see [`Isa::takes_pairs`].
    codes: Vec<Column>,
    stride: usize,
    /// Words of a row that are added up before they are scaled, and the group of their scale.
    parts: Vec<(Range<usize>, usize)>,
    /// `[tokens, parts]`.
    sums: Vec<i32>,
    scales: Vec<f32>,
}

impl Tokens {
    fn of(isa: Isa, x: &HostActivations, w: &InterleavedTernary) -> Self {
        // No two tokens a multiple of a page apart, where they would share lines of a cache.
        let stride = w.row_words() + 4;
        let parts = parts(w);
        let mut codes = vec![[0; CODES_PER_WORD]; x.tokens * stride];
        let mut sums = Vec::with_capacity(x.tokens * parts.len());
        for (token, codes) in codes.chunks_exact_mut(stride).enumerate() {
            codes.as_flattened_mut()[..x.features].copy_from_slice(x.row(token));
            sums.extend(parts.iter().map(|(words, _)| sum(&codes[words.clone()])));
        }
        if isa.takes_pairs() {
            for pair in codes.chunks_exact_mut(2 * stride) {
                let (first, second) = pair.split_at_mut(stride);
                first.iter_mut().zip(second).for_each(|(first, second)| {
                    first[CODES_PER_WORD / 2..].swap_with_slice(&mut second[..CODES_PER_WORD / 2])
                });
            }
        }
        Self { codes, stride, parts, sums, scales: x.scales.clone() }
    }

    fn len(&self) -> usize {
        self.scales.len()
    }

    fn row(&self, token: usize, words: &Range<usize>) -> &[Column] {
        &self.codes[token * self.stride..][words.clone()]
    }
}

/// All of a row, or the blocks of its groups.
fn parts(w: &InterleavedTernary) -> Vec<(Range<usize>, usize)> {
    if w.group().is_none() {
        return vec![(0..w.row_words(), 0)];
    }
    let words = rounded_block(w.group()) / CODES_PER_WORD;
    let of_group = |group| {
        let range = w.group_range(group);
        range.clone().step_by(words).map(move |first| (first..range.end.min(first + words), group))
    };
    (0..w.groups()).flat_map(of_group).collect()
}

#[multiversion::multiversion(targets = "simd")]
fn sum(codes: &[Column]) -> i32 {
    codes.as_flattened().iter().map(|&code| i32::from(code)).sum()
}

/// `x` `[tokens, columns]` times `w` `[rows, columns]` as `[tokens, rows]`, with instructions that
/// this processor has.
pub fn bitlinear(isa: Isa, x: &HostActivations, w: &InterleavedTernary) -> Result<Vec<f32>> {
    x.check_bitlinear(w.columns())?;
    let m = x.tokens;
    if m == 0 {
        return Ok(Vec::new());
    }
    let x = Tokens::of(isa, x, w);
    Ok(by_blocks(m, w, |blocks, y| multiply(isa, &x, w, blocks, y)))
}

/// `[tokens, rows]` of `multiply(blocks, y)`, which makes some blocks of rows for all `m` tokens,
/// at least one: `[tokens, 16 rows a block]`.
pub(super) fn by_blocks(
    m: usize,
    w: &InterleavedTernary,
    multiply: impl Fn(Range<usize>, &mut [f32]) + Sync,
) -> Vec<f32> {
    let n = w.rows();
    // Blocks of rows are the tasks; each has its outputs together, a token after another.
    let blocks =
        (TASK_BYTES / (w.row_words() * size_of::<Lanes>()).max(1)).clamp(1, w.blocks().max(1));
    let mut by_task = vec![0f32; w.blocks() * LANES * m];
    by_task.par_chunks_mut(blocks * LANES * m).enumerate().for_each(|(task, y)| {
        let first = task * blocks;
        multiply(first..first + y.len() / (LANES * m), y);
    });
    if m == 1 {
        by_task.truncate(n);
        return by_task;
    }
    let mut y = vec![0f32; m * n];
    y.par_chunks_exact_mut(n.max(1)).enumerate().for_each(|(token, y)| {
        for (y, task) in y.chunks_mut(blocks * LANES).zip(by_task.chunks(blocks * LANES * m)) {
            y.copy_from_slice(&task[token * (task.len() / m)..][..y.len()]);
        }
    });
    y
}

/// Some blocks of rows times all tokens: `[tokens, 16 rows a block]`.
#[allow(unsafe_code)]
fn multiply(isa: Isa, x: &Tokens, w: &InterleavedTernary, blocks: Range<usize>, y: &mut [f32]) {
    match isa.kind() {
        // SAFETY: only what the processor has becomes an `Isa`.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx512Vnni => unsafe { avx512_vnni::multiply(x, w, blocks, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Extension::AvxVnni => unsafe { avx_vnni::multiply(x, w, blocks, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 => unsafe { avx2::multiply(x, w, blocks, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Extension::NeonI8mm => unsafe { neon_i8mm::multiply(x, w, blocks, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Extension::NeonDot => unsafe { neon_dot::multiply(x, w, blocks, y) },
        Extension::Portable => portable::multiply(x, w, blocks, y),
    }
}

/// What every instruction set does around its `sums(words, x)`: the integers of sixteen rows times
/// T tokens.
macro_rules! multiply {
    ($($attribute:meta)?) => {
        $(#[$attribute])?
        pub(super) fn multiply(x: &Tokens, w: &InterleavedTernary, blocks: Range<usize>, y: &mut [f32]) {
            let mut token = 0;
            while token < x.len() {
                token += match x.len() - token {
                    1 => tile::<1>(x, w, &blocks, token, y),
                    2 | 3 => tile::<2>(x, w, &blocks, token, y),
                    4..8 => tile::<4>(x, w, &blocks, token, y),
                    _ => tile::<8>(x, w, &blocks, token, y),
                };
            }
        }

        /// Does so for T tokens, and gives T.
        $(#[$attribute])?
        fn tile<const T: usize>(x: &Tokens, w: &InterleavedTernary, blocks: &Range<usize>, token: usize, y: &mut [f32]) -> usize {
            let width = blocks.len() * LANES;
            for (i, block) in blocks.clone().enumerate() {
                let (words, scales) = w.block(block);
                // -0 leaves the only number as it is.
                let mut all = [[if w.group().is_none() { -0.0 } else { 0.0 }; LANES]; T];
                for (part, (range, group)) in x.parts.iter().enumerate() {
                    let scales = &scales[*group];
                    let sums = sums::<T>(&words[range.clone()], std::array::from_fn(|t| x.row(token + t, range)));
                    for (t, (all, sums)) in all.iter_mut().zip(&sums).enumerate() {
                        let own = x.sums[(token + t) * x.parts.len() + part];
                        for lane in 0..LANES {
                            all[lane] += (sums[lane] - own) as f32 * scales[lane];
                        }
                    }
                }
                for (t, all) in all.iter().enumerate() {
                    let y = &mut y[(token + t) * width + i * LANES..][..LANES];
                    y.iter_mut().zip(all).for_each(|(y, sum)| *y = sum / x.scales[token + t]);
                }
            }
            T
        }
    };
}

/// Four activations as the dword that meets a field.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn dword(x: &Column, field: usize) -> i32 {
    i32::from_le_bytes(
        [x[4 * field], x[4 * field + 1], x[4 * field + 2], x[4 * field + 3]].map(|code| code as u8),
    )
}

mod portable {
    use super::*;

    multiply!();

    fn sums<const T: usize>(words: &[Lanes], x: [&[Column]; T]) -> [[i32; LANES]; T] {
        let mut sums = [[0; LANES]; T];
        for (j, word) in words.iter().enumerate() {
            for f in 0..4 {
                let codes = word.0.map(|word| word >> (2 * f) & 0x0303_0303);
                for (sums, x) in sums.iter_mut().zip(x) {
                    let x: [i32; 4] = std::array::from_fn(|i| i32::from(x[j][4 * f + i]));
                    for (sum, codes) in sums.iter_mut().zip(codes) {
                        *sum += (0..4).map(|i| (codes >> (8 * i) & 3) as i32 * x[i]).sum::<i32>();
                    }
                }
            }
        }
        sums
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512_vnni {
    use super::*;
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
            prefetch::prefetch_after(words, 4096);
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
        _mm512_add_epi32(
            low,
            _mm512_add_epi32(_mm512_srai_epi32::<4>(c), _mm512_srai_epi32::<6>(d)),
        )
    }
}

#[cfg(target_arch = "x86_64")]
mod avx_vnni {
    use super::*;
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
            prefetch::prefetch_after(std::slice::from_ref(word), 4096);
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
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::*;
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
                    prefetch::prefetch_after(&words[j..=j], 4096);
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
}

#[cfg(target_arch = "aarch64")]
mod neon_dot {
    use super::*;
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
}

#[cfg(target_arch = "aarch64")]
mod neon_i8mm {
    use super::*;
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
                    let rows = [
                        [vzip1q_u32(a, b), vzip1q_u32(c, d)],
                        [vzip2q_u32(a, b), vzip2q_u32(c, d)],
                    ];
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::Error,
        ops::bitnet::{MAX_FEATURES, bitlinear_quantized_cpu},
        weights::ternary::{packed::PackedTernary, scales::Scales},
    };
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn check(rng: &mut StdRng, [m, n, k]: [usize; 3], group: Option<usize>, extreme: bool) {
        let values: Vec<i8> =
            (0..n * k).map(|_| if extreme { 1 } else { rng.random_range(-1..=1) }).collect();
        let scales = match group {
            Some(size) => Scales::Groups {
                size,
                scales: (0..n * k.div_ceil(size)).map(|_| rng.random_range(-2.0..2.0)).collect(),
            },
            None => Scales::Segments((0..n).map(|_| (1, rng.random_range(0.5..2.0))).collect()),
        };
        let w = PackedTernary::from_values(n, k, &values, scales).unwrap();
        let codes =
            (0..m * k).map(|_| if extreme { -128 } else { rng.random_range(-128..=127) }).collect();
        let scales = (0..m).map(|_| rng.random_range(1.0..100.0)).collect();
        let x = HostActivations { tokens: m, features: k, codes, scales };
        let expected: Vec<u32> =
            bitlinear_quantized_cpu(&x, &w).unwrap().into_iter().map(f32::to_bits).collect();
        let w = InterleavedTernary::of(&w);
        for isa in Isa::all() {
            let found: Vec<u32> =
                bitlinear(isa, &x, &w).unwrap().into_iter().map(f32::to_bits).collect();
            assert_eq!(found, expected, "{isa:?}, {m} tokens, {n} × {k}, groups of {group:?}");
        }
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_twin() {
        let mut rng = StdRng::seed_from_u64(1);
        for m in [0, 1, 2, 3, 7, 8, 9, 17, 25] {
            for [n, k] in [
                [1, 1],
                [16, 64],
                [17, 63],
                [48, 65],
                [5, 0],
                [0, 5],
                [100, 640],
                [33, 1000],
                [640, 128],
            ] {
                check(&mut rng, [m, n, k], None, false);
            }
            for ([n, k], size) in [
                ([17, 128], 128),
                ([40, 300], 32),
                ([16, 1000], 128),
                ([3, 50], 64),
                ([20, 130], 16),
                ([80, 3], 16),
            ] {
                check(&mut rng, [m, n, k], Some(size), false);
            }
        }
        for _ in 0..40 {
            let shape =
                [rng.random_range(1..20), rng.random_range(1..90), rng.random_range(1..700)];
            check(&mut rng, shape, None, false);
            let size = 16 * rng.random_range(1..20);
            check(&mut rng, shape, Some(size), false);
        }
    }

    #[test]
    fn the_largest_sums_are_exact() {
        let mut rng = StdRng::seed_from_u64(2);
        for m in [1, 2, 8] {
            check(&mut rng, [m, 17, 6912], None, true);
            check(&mut rng, [m, 1, MAX_FEATURES], None, true);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let w = InterleavedTernary::of(
            &PackedTernary::from_values(2, 3, &[0; 6], Scales::Tensor(1.0)).unwrap(),
        );
        let x = |features, len: usize| HostActivations {
            tokens: 1,
            features,
            codes: vec![0; len],
            scales: vec![1.0],
        };
        assert!(matches!(
            bitlinear(Isa::best(), &x(4, 4), &w),
            Err(Error::Shape { what: "x", .. })
        ));
        assert!(matches!(
            bitlinear(Isa::best(), &x(3, 4), &w),
            Err(Error::Length { found: 4, .. })
        ));
    }
}
