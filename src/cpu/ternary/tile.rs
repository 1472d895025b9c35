//! The loops around an instruction set's products.

#[cfg(target_arch = "x86_64")]
use crate::weights::ternary::layout::CODES_PER_WORD;

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
pub(super) use multiply;

/// Four activations as the dword that meets a field.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn dword(x: &[i8; CODES_PER_WORD], field: usize) -> i32 {
    i32::from_le_bytes(
        [x[4 * field], x[4 * field + 1], x[4 * field + 2], x[4 * field + 3]].map(|code| code as u8),
    )
}
