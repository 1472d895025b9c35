//! Products in plain loops, for any processor.

use super::{
    tile::multiply,
    tokens::{Column, Tokens},
};
use crate::weights::ternary::interleaved::{InterleavedTernary, LANES, Lanes};
use std::ops::Range;

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
