//! Quantized activations in the layout of the kernels.

use crate::{
    cpu::isa::Isa,
    ops::bitnet::{block_columns, host_activations::HostActivations},
    weights::ternary::{interleaved::InterleavedTernary, layout::CODES_PER_WORD},
};
use std::ops::Range;

/// The activations that meet a word.
pub type Column = [i8; CODES_PER_WORD];

/// Codes and sums of all tokens.
pub struct Tokens {
    /// `[tokens, stride]`; see [`Isa::takes_pairs`].
    codes: Vec<Column>,
    stride: usize,
    /// Words of a row that are added up before they are scaled, and the group of their scale.
    pub parts: Vec<(Range<usize>, usize)>,
    /// `[tokens, parts]`.
    pub sums: Vec<i32>,
    /// One a token.
    pub scales: Vec<f32>,
}

impl Tokens {
    /// Lays out `x` for products with `w`.
    pub fn of(isa: Isa, x: &HostActivations, w: &InterleavedTernary) -> Self {
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

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    /// Activations of a token that meet these words of a row.
    pub fn row(&self, token: usize, words: &Range<usize>) -> &[Column] {
        &self.codes[token * self.stride..][words.clone()]
    }
}

/// All of a row, or the blocks of its groups.
fn parts(w: &InterleavedTernary) -> Vec<(Range<usize>, usize)> {
    if w.group().is_none() {
        return vec![(0..w.row_words(), 0)];
    }
    let words = block_columns(w.group()) / CODES_PER_WORD;
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
