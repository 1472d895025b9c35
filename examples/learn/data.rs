//! The text, its characters as tokens, and which of them a step sees.

use std::ops::Range;

/// Sampled from the model in `assets/tales-22m`.
const TEXT: &[u8] = include_bytes!("text.txt");

/// Words that follow from a seed alone: SplitMix64 (Steele, Lea, Flood 2014).
pub fn words(seed: u64) -> impl Iterator<Item = u64> {
    (1u64..).map(move |i| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// A text as tokens, of which each is a character that it has.
pub struct Text {
    tokens: Vec<u32>,
    /// How many characters there are.
    pub vocabulary: usize,
}

impl Text {
    pub fn new() -> Self {
        let mut characters = TEXT.to_vec();
        characters.sort_unstable();
        characters.dedup();
        let token = |byte: &u8| characters.binary_search(byte).expect("it is one of them") as u32;
        Self { tokens: TEXT.iter().map(token).collect(), vocabulary: characters.len() }
    }

    /// `[count, length]` tokens for a step, and the one that comes after each.
    pub fn batch(&self, step: u64, count: usize, length: usize) -> (Vec<u32>, Vec<u32>) {
        let starts: Vec<usize> = words(step)
            .take(count)
            .map(|word| (word % (self.tokens.len() - length) as u64) as usize)
            .collect();
        let windows = |range: Range<usize>| {
            starts
                .iter()
                .flat_map(|start| &self.tokens[start + range.start..start + range.end])
                .copied()
                .collect()
        };
        (windows(0..length), windows(1..length + 1))
    }
}
