//! The width of a code, and how codes lie in words.
//!
//! Codes fill a word from its lowest bits on. A row is padded with codes of 0 to whole vectors of
//! four words, so that every row begins at 16 bytes. What the padding stands for, -scale·zero,
//! matters nowhere: kernels read weights by their column, and integer sums meet activations of 0
//! there.

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bits {
    /// Codes 0 and 1, 32 a word.
    One,
    /// Codes from 0 to 3, 16 a word.
    Two,
    /// Codes from 0 to 15, 8 a word.
    Four,
    /// Codes from 0 to 255, 4 a word.
    Eight,
}

impl Bits {
    /// All widths.
    pub const ALL: [Self; 4] = [Self::One, Self::Two, Self::Four, Self::Eight];

    /// Returns the number of bits.
    pub const fn count(self) -> usize {
        1 << self as usize
    }

    /// Returns the largest code, 2^bits - 1.
    pub const fn max_code(self) -> u8 {
        ((1u32 << self.count()) - 1) as u8
    }

    /// Codes in a word.
    pub(crate) const fn codes_per_word(self) -> usize {
        32 / self.count()
    }

    /// Words in a row of `columns` codes.
    pub(crate) const fn row_words(self, columns: usize) -> usize {
        columns.div_ceil(4 * self.codes_per_word()) * 4
    }
}
