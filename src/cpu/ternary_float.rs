//! Ternary matrices times activations in block floating point: the bits of
//! [`bitlinear_block_float`](crate::reference::bitlinear_block_float).
//!
//! The sixteen rows of a vector (see [`InterleavedTernary`]) meet the same activation, so nothing
//! is added up across a vector. The sum of a block of columns is exact; it is scaled, and these are
//! added in the order of the columns.

use super::{ternary::tasks::by_blocks, threads::enter};
use crate::{
    error::{Error, Result},
    ops::{bitnet::block_columns, host::quantize_block_float},
    weights::ternary::{
        interleaved::{InterleavedTernary, LANES, Lanes},
        layout::{CODES_PER_WORD, bit},
    },
};
use rayon::prelude::*;
use std::ops::Range;

/// The rows of `table` `[vocab, columns]` that `tokens` name, as `[tokens, columns]`: the bits of
/// [`embed_ternary`](crate::reference::embed_ternary).
pub fn embed(tokens: &[u32], table: &InterleavedTernary) -> Result<Vec<f32>> {
    let mut y = Vec::with_capacity(tokens.len() * table.columns());
    for &token in tokens {
        let row = token as usize;
        if row >= table.rows() {
            return Err(Error::Invalid {
                op: "embed",
                what: format!("token {token}; the vocabulary has {}", table.rows()),
            });
        }
        let ((words, scales), lane) = (table.block(row / LANES), row % LANES);
        let groups = (0..table.groups())
            .flat_map(|group| table.group_range(group).map(move |word| (word, group)));
        let numbers = groups.flat_map(|(word, group)| {
            (0..CODES_PER_WORD).map(move |e| {
                ((words[word].0[lane] >> bit(e) & 3) as i32 - 1) as f32 * scales[group][lane]
            })
        });
        y.extend(numbers.take(table.columns()));
    }
    Ok(y)
}

/// The activations that meet a word.
type Column = [f32; CODES_PER_WORD];

/// Tokens that share decoded weights.
const TOGETHER: usize = 4;

/// Activations whose conversion is worth being given to other threads.
const WORTH_THREADS: usize = 1 << 14;

/// `x` `[tokens, columns]`, rounded, times `w` `[rows, columns]` as `[tokens, rows]`.
pub fn bitlinear(mut x: Vec<f32>, w: &InterleavedTernary) -> Result<Vec<f32>> {
    let columns = w.columns();
    if columns == 0 || !x.len().is_multiple_of(columns) {
        return Err(Error::Length {
            shape: [x.len() / columns.max(1), columns].into(),
            found: x.len(),
        });
    }
    let round = |rows: &mut [f32]| quantize_block_float(rows, columns, w.group());
    if x.len() <= WORTH_THREADS {
        round(&mut x)?;
    } else {
        enter(true, || x.par_chunks_mut(columns).try_for_each(round))?;
    }
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let m = x.len() / columns;
    let mut padded = vec![[0f32; CODES_PER_WORD]; m * w.row_words()];
    for (to, row) in padded.chunks_exact_mut(w.row_words()).zip(x.chunks_exact(columns)) {
        to.as_flattened_mut()[..columns].copy_from_slice(row);
    }
    Ok(by_blocks(m, w, |blocks, y| multiply(&padded, w, blocks, y)))
}

/// Some blocks of rows times all tokens: `[tokens, 16 rows a block]`.
#[multiversion::multiversion(targets = "simd")]
fn multiply(x: &[Column], w: &InterleavedTernary, blocks: Range<usize>, y: &mut [f32]) {
    let (width, stride) = (blocks.len() * LANES, w.row_words());
    for (i, block) in blocks.enumerate() {
        let of_tokens = x.chunks(TOGETHER * stride).zip(y.chunks_mut(TOGETHER * width));
        for (x, y) in of_tokens {
            let row = |t: usize| &x[t * stride..][..stride];
            if x.len() == TOGETHER * stride {
                tile::<TOGETHER>(std::array::from_fn(row), w, block, y, width, i);
            } else {
                (0..x.len() / stride)
                    .for_each(|t| tile::<1>([row(t)], w, block, &mut y[t * width..], width, i));
            }
        }
    }
}

/// A block of rows times T tokens, to place `i` of their outputs, which are `width` numbers each.
#[inline(always)]
fn tile<const T: usize>(
    x: [&[Column]; T],
    w: &InterleavedTernary,
    block: usize,
    y: &mut [f32],
    width: usize,
    i: usize,
) {
    let (words, scales) = w.block(block);
    let block_words = block_columns(w.group()) / CODES_PER_WORD;
    let mut all = [[0f32; LANES]; T];
    for (group, scales) in scales.iter().enumerate() {
        let of_group = w.group_range(group);
        for first in of_group.clone().step_by(block_words) {
            let range = first..(first + block_words).min(of_group.end);
            let sums = sums::<T>(&words[range.clone()], x.map(|x| &x[range.clone()]));
            for (all, sums) in all.iter_mut().zip(&sums) {
                (0..LANES).for_each(|lane| all[lane] += sums[lane] * scales[lane]);
            }
        }
    }
    for (t, all) in all.iter().enumerate() {
        y[t * width + i * LANES..][..LANES].copy_from_slice(all);
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn sums<const T: usize>(words: &[Lanes], x: [&[Column]; T]) -> [[f32; LANES]; T] {
    let mut sums = [[0f32; LANES]; T];
    // Plain loops: adapters of iterators are calls in builds that optimize a function at a time.
    for (j, word) in words.iter().enumerate() {
        for e in 0..CODES_PER_WORD {
            let mut values = [0f32; LANES];
            for lane in 0..LANES {
                values[lane] = ((word.0[lane] >> bit(e) & 3) as i32 - 1) as f32;
            }
            for t in 0..T {
                let x = x[t][j][e];
                for lane in 0..LANES {
                    sums[t][lane] += values[lane] * x;
                }
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ops::reference::bitlinear_block_float,
        weights::ternary::{packed::PackedTernary, scales::Scales},
    };
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    /// What the CPU references make of one token alone.
    fn plainly(x: &[f32], w: &PackedTernary) -> Vec<u32> {
        let mut x = x.to_vec();
        quantize_block_float(&mut x, w.columns(), w.group()).unwrap();
        bitlinear_block_float(&x, w).unwrap().into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn rows_are_those_of_the_matrix() {
        for (rows, columns, size) in
            [(1usize, 1usize, None), (35, 300, Some(128)), (16, 64, Some(16)), (20, 130, Some(64))]
        {
            let values: Vec<i8> = (0..rows * columns).map(|i| (i * i % 7 % 3) as i8 - 1).collect();
            let count = rows * size.map_or(1, |size| columns.div_ceil(size));
            let scales: Vec<f32> = (0..count).map(|i| 0.5 - i as f32).collect();
            let scales = size.map_or(Scales::Tensor(-0.3), |size| Scales::Groups { size, scales });
            let w = PackedTernary::from_values(rows, columns, &values, scales).unwrap();
            let tokens: Vec<u32> = (0..rows as u32).rev().chain([0]).collect();
            let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let expected = bits(crate::ops::reference::embed_ternary(&tokens, &w).unwrap());
            assert!(
                bits(embed(&tokens, &InterleavedTernary::new(&w)).unwrap()) == expected,
                "{rows} × {columns} by {size:?}"
            );
            assert!(embed(&[rows as u32], &InterleavedTernary::new(&w)).is_err());
        }
    }

    #[test]
    fn a_token_does_not_depend_on_the_batch() {
        let mut rng = StdRng::seed_from_u64(3);
        let shapes: [(usize, usize, usize, Option<usize>); 8] = [
            (1, 1, 1, None),
            (0, 3, 5, None),
            (3, 20, 300, Some(128)),
            (9, 33, 256, Some(64)),
            (4, 16, 40, Some(16)),
            (6, 70, 129, Some(128)),
            (5, 18, 520, Some(256)),
            (2, 17, 400, None),
        ];
        for (m, rows, columns, size) in shapes {
            let values: Vec<i8> = (0..rows * columns).map(|_| rng.random_range(-1..=1)).collect();
            let scales = match size {
                Some(size) => {
                    let count = rows * columns.div_ceil(size);
                    Scales::Groups {
                        size,
                        scales: (0..count).map(|_| rng.random_range(0.5..2.0)).collect(),
                    }
                }
                None => Scales::Tensor(0.7),
            };
            let w = PackedTernary::from_values(rows, columns, &values, scales).unwrap();
            let x: Vec<f32> = (0..m * columns).map(|_| rng.random_range(-3.0..3.0)).collect();
            let y = bitlinear(x.clone(), &InterleavedTernary::new(&w)).unwrap();
            let y: Vec<Vec<u32>> =
                y.chunks(rows).map(|y| y.iter().map(|v| v.to_bits()).collect()).collect();
            let expected: Vec<Vec<u32>> = x.chunks(columns).map(|x| plainly(x, &w)).collect();
            assert!(y == expected, "{m} × {rows} × {columns} by {size:?}");
            if m > 0 {
                assert!(
                    bitlinear(x[1..].to_vec(), &InterleavedTernary::new(&w)).is_err()
                        || columns == 1
                );
            }
        }
    }
}
