//! Ternary matrices as processors read them.

use super::{
    layout::{CODES_PER_WORD, ZEROS, row_words},
    packed::PackedTernary,
    scales::groups,
};
use rayon::prelude::*;
use std::{ops::Range, sync::Arc};

/// Rows whose words lie in turn.
pub(crate) const LANES: usize = 16;

/// A word of each of [`LANES`] rows: a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Lanes(pub [u32; LANES]);

/// A ternary matrix `[rows, columns]` in the layout of the CPU kernels, two bits a weight.
///
/// Rows are interleaved by words: the first words of sixteen rows, their second words, and so on. A
/// vector instruction has sixteen rows before it that all meet the same activations, so nothing is
/// added up across a vector, and weights are read in order.
#[derive(Clone, Debug)]
pub struct InterleavedTernary {
    rows: usize,
    columns: usize,
    group: Option<usize>,
    /// Blocks of other matrices before these.
    first: usize,
    /// `[ceil(rows / 16), words of a row]`; rows that do not exist are zeros.
    words: Arc<Vec<Lanes>>,
    /// `[ceil(rows / 16), groups of a row]`.
    scales: Arc<Vec<[f32; LANES]>>,
}

impl InterleavedTernary {
    /// Copies a matrix into this layout: once for each matrix, not for each product.
    pub fn new(w: &PackedTernary) -> Self {
        Self::of_parts(w, 1)
    }

    /// Copies several matrices of as many rows each, which lie one after another in `w`. Each
    /// begins with a block of its own. The result is the first of them, and
    /// [`part`](Self::part) gives the others.
    pub(crate) fn of_parts(w: &PackedTernary, parts: usize) -> Self {
        let rows = w.rows() / parts.max(1);
        let (stride, groups) = (w.row_words(), groups(w.columns(), w.group()));
        let in_part = rows.div_ceil(LANES);
        let blocks = in_part * parts;
        let mut words = vec![Lanes([ZEROS; LANES]); blocks * stride];
        words.par_chunks_mut(stride.max(1)).enumerate().for_each(|(block, words)| {
            let (part, first) = (block / in_part, block % in_part * LANES);
            for lane in 0..LANES.min(rows - first) {
                words
                    .iter_mut()
                    .zip(w.row(part * rows + first + lane))
                    .for_each(|(to, &word)| to.0[lane] = word);
            }
        });
        let mut scales = vec![[1.0; LANES]; blocks * groups];
        for (at, scale) in w.row_scales().into_iter().enumerate() {
            let (part, row, group) = (at / groups / rows, at / groups % rows, at % groups);
            let block = part * in_part + row / LANES;
            scales[block * groups + group][row % LANES] = scale;
        }
        let (words, scales) = (Arc::new(words), Arc::new(scales));
        Self { rows, columns: w.columns(), group: w.group(), first: 0, words, scales }
    }

    /// The matrix of this number of [`of_parts`](Self::of_parts), which shares its memory.
    #[cfg(feature = "models")]
    pub(crate) fn part(&self, part: usize) -> Self {
        Self { first: part * self.blocks(), ..self.clone() }
    }

    /// Number of rows: output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: input features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Words in a row.
    pub(crate) fn row_words(&self) -> usize {
        row_words(self.columns)
    }

    /// Columns that share a scale, where not all do.
    pub(crate) fn group(&self) -> Option<usize> {
        self.group
    }

    /// Scales in a row.
    pub(crate) fn groups(&self) -> usize {
        groups(self.columns, self.group)
    }

    /// The words of a row that share its scale of this number.
    pub(crate) fn group_range(&self, group: usize) -> Range<usize> {
        let words = self.group.map_or(self.row_words(), |size| size / CODES_PER_WORD);
        group * words..((group + 1) * words).min(self.row_words())
    }

    /// Blocks of sixteen rows.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// The words of a block, and its scales by group.
    pub(crate) fn block(&self, block: usize) -> (&[Lanes], &[[f32; LANES]]) {
        let (groups, block) = (self.groups(), self.first + block);
        (
            &self.words[block * self.row_words()..][..self.row_words()],
            &self.scales[block * groups..][..groups],
        )
    }
}
