//! Random numbers that follow from a seed alone, on every platform.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the numbers of a seed and of a stream within it.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mixed(seed).wrapping_add(mixed(!stream)))
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// Returns a number below `bound`, which is not 0. The bias is below bound / 2^64.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.word()) * bound as u128) >> 64) as usize
    }

    /// Returns a number from -1 to less than 1, in steps of 2^-23.
    pub fn signed(&mut self) -> f32 {
        (self.word() >> 40) as f32 * 2f32.powi(-23) - 1.0
    }
}

fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
