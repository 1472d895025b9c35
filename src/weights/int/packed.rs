//! Matrices of 1 to 8 bits in host memory.

use super::{
    affine::{Affine, invalid},
    bits::Bits,
};
use crate::{
    error::{Error, Result},
    weights::ternary::scales::groups,
};
use rayon::prelude::*;

/// A matrix of codes of 1, 2, 4 or 8 bits in host memory, rows = output features, packed as the
/// kernels want it: weight = scale·(code - zero).
#[derive(Clone, Debug, PartialEq)]
pub struct PackedInt {
    rows: usize,
    columns: usize,
    bits: Bits,
    words: Vec<u32>,
    affine: Affine,
}

impl PackedInt {
    /// Packs row-major codes.
    ///
    /// # Errors
    /// [`Error::Length`] if `codes` is not `rows × columns`; [`Error::Invalid`] for a code that has
    /// too many bits, scales or zero points that are not finite or out of range, or as many as do
    /// not fit the shape, or a size of groups that is no multiple of 32.
    ///
    /// ```
    /// # use bitnet_wgpu::weights::{Affine, Bits, PackedInt};
    /// // One bit for ±0.25: codes 0 and 1 less a half, by twice as much.
    /// let binary = Affine { group: None, scales: vec![0.5; 2], zeros: vec![0.5; 2] };
    /// let w = PackedInt::from_codes(2, 3, Bits::One, &[1, 0, 1, 0, 0, 1], binary)?;
    /// assert_eq!(w.dequantize(), [0.25, -0.25, 0.25, -0.25, -0.25, 0.25]);
    /// # Ok::<(), bitnet_wgpu::Error>(())
    /// ```
    pub fn from_codes(
        rows: usize,
        columns: usize,
        bits: Bits,
        codes: &[u8],
        affine: Affine,
    ) -> Result<Self> {
        if rows.checked_mul(columns) != Some(codes.len()) {
            return Err(Error::Length { shape: [rows, columns].into(), found: codes.len() });
        }
        if let Some(at) = codes.iter().position(|&code| code > bits.max_code()) {
            let (row, column) = (at / columns, at % columns);
            return Err(invalid(format!(
                "code {} at row {row}, column {column}; {} bits hold {}",
                codes[at],
                bits.count(),
                bits.max_code()
            )));
        }
        Self::from_fn(rows, columns, bits, affine, |row, column| codes[row * columns + column])
    }

    /// Packs what `code(row, column)` gives: at most `bits.max_code()`.
    pub(crate) fn from_fn(
        rows: usize,
        columns: usize,
        bits: Bits,
        affine: Affine,
        code: impl Fn(usize, usize) -> u8 + Sync,
    ) -> Result<Self> {
        Self::from_rows(rows, columns, bits, affine, |row, codes| {
            codes.iter_mut().enumerate().for_each(|(column, to)| *to = code(row, column));
        })
    }

    /// Packs rows whose codes `fill(row, codes)` writes: at most `bits.max_code()`.
    pub(crate) fn from_rows(
        rows: usize,
        columns: usize,
        bits: Bits,
        affine: Affine,
        fill: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Result<Self> {
        check(rows, columns, bits, &affine)?;
        let stride = bits.row_words(columns);
        let mut words = vec![0; rows * stride];
        words.par_chunks_mut(stride.max(1)).enumerate().for_each(|(row, words)| {
            let mut codes = vec![0; columns];
            fill(row, &mut codes);
            for (word, codes) in words.iter_mut().zip(codes.chunks(bits.codes_per_word())) {
                *word = codes
                    .iter()
                    .rev()
                    .fold(0, |word, &code| word << bits.count() | u32::from(code));
            }
        });
        Ok(Self { rows, columns, bits, words, affine })
    }

    /// Takes words that are already packed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a wrong count, or padding that is not 0; else as
    /// [`PackedInt::from_codes`].
    pub fn from_words(
        rows: usize,
        columns: usize,
        bits: Bits,
        words: Vec<u32>,
        affine: Affine,
    ) -> Result<Self> {
        check(rows, columns, bits, &affine)?;
        let stride = bits.row_words(columns);
        if rows.checked_mul(stride) != Some(words.len()) {
            return Err(invalid(format!("{} words for {rows} rows of {stride}", words.len())));
        }
        let packed = Self { rows, columns, bits, words, affine };
        for row in 0..rows {
            if (columns..stride * bits.codes_per_word()).any(|column| packed.code(row, column) != 0)
            {
                return Err(invalid(format!("row {row} is not padded with codes of 0")));
            }
        }
        Ok(packed)
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The width of its codes.
    pub fn bits(&self) -> Bits {
        self.bits
    }

    /// The packed codes, a row after another: lowest bits first, each row padded to whole vectors
    /// of four words.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Scales and zero points.
    pub fn affine(&self) -> &Affine {
        &self.affine
    }

    /// The group size, where scales go per group of columns.
    pub fn group(&self) -> Option<usize> {
        self.affine.group
    }

    /// One code.
    pub fn code(&self, row: usize, column: usize) -> u8 {
        let (bits, per_word) = (self.bits, self.bits.codes_per_word());
        let word = self.words[row * bits.row_words(self.columns) + column / per_word];
        (word >> (column % per_word * bits.count())) as u8 & bits.max_code()
    }

    /// All codes, row-major.
    pub fn to_codes(&self) -> Vec<u8> {
        (0..self.rows)
            .flat_map(|row| (0..self.columns).map(move |column| self.code(row, column)))
            .collect()
    }

    /// All weights, row-major: the CPU reference of
    /// [`IntMatrix::dequantize`](crate::weights::IntMatrix::dequantize).
    pub fn dequantize(&self) -> Vec<f32> {
        let Affine { group, scales, zeros } = &self.affine;
        let (size, groups) = (group.unwrap_or(self.columns).max(1), groups(self.columns, *group));
        let weight = |row: usize, column: usize| {
            let at = row * groups + column / size;
            scales[at] * (f32::from(self.code(row, column)) - zeros[at])
        };
        (0..self.rows)
            .flat_map(|row| (0..self.columns).map(move |column| weight(row, column)))
            .collect()
    }
}

fn check(rows: usize, columns: usize, bits: Bits, affine: &Affine) -> Result<()> {
    if rows > u32::MAX as usize || columns > u32::MAX as usize / bits.count() {
        return Err(invalid(format!(
            "{rows} × {columns}; kernels count rows, and the bits of a row, in 32 bits"
        )));
    }
    affine.check(rows, columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn plain(rows: usize) -> Affine {
        Affine { group: None, scales: vec![0.5; rows], zeros: vec![1.0; rows] }
    }

    #[test]
    fn packing_round_trips() {
        let mut rng = StdRng::seed_from_u64(1);
        for bits in Bits::ALL {
            // Every tail of a word, and of a vector of words.
            for (rows, columns) in
                (0..4).flat_map(|rows| (0..150).map(move |columns| (rows, columns)))
            {
                let codes: Vec<u8> =
                    (0..rows * columns).map(|_| rng.random_range(0..=bits.max_code())).collect();
                let w = PackedInt::from_codes(rows, columns, bits, &codes, plain(rows)).unwrap();
                assert_eq!(w.to_codes(), codes, "{rows} × {columns}, {bits:?}");
                assert_eq!(
                    PackedInt::from_words(rows, columns, bits, w.words().to_vec(), plain(rows))
                        .unwrap(),
                    w
                );
            }
        }
    }

    #[test]
    fn word_layout_is_the_documented_one() {
        let words = |bits, codes: &[u8]| {
            PackedInt::from_codes(1, codes.len(), bits, codes, plain(1)).unwrap().words().to_vec()
        };
        assert_eq!(words(Bits::One, &[1, 0, 1]), [0b101, 0, 0, 0]);
        assert_eq!(words(Bits::Two, &[3, 0, 2]), [0b10_00_11, 0, 0, 0]);
        assert_eq!(words(Bits::Four, &[1, 2, 3, 4, 5, 6, 7, 8, 9]), [0x8765_4321, 9, 0, 0]);
        assert_eq!(words(Bits::Eight, &[1, 2, 3, 4, 255]), [0x0403_0201, 255, 0, 0]);
        assert_eq!(words(Bits::Eight, &[7; 17]).len(), 8);
    }

    #[test]
    fn groups_have_their_own_scale_and_zero() {
        let affine = Affine {
            group: Some(32),
            scales: vec![1.0, 2.0, -3.0, 0.0],
            zeros: vec![0.0, 1.5, 2.0, 3.0],
        };
        let w = PackedInt::from_codes(2, 33, Bits::Two, &[3; 66], affine).unwrap();
        let weights = w.dequantize();
        assert_eq!(
            [weights[0], weights[31], weights[32], weights[33], weights[65]],
            [3.0, 3.0, 3.0, -3.0, 0.0]
        );
    }

    #[test]
    fn bad_input_is_named() {
        let error = |r: Result<PackedInt>| r.unwrap_err().to_string();
        let of = |codes: &[u8], affine| PackedInt::from_codes(1, 2, Bits::Two, codes, affine);
        assert!(error(of(&[0; 3], plain(1))).contains("[1, 2]"));
        assert!(error(of(&[0, 4], plain(1))).contains("code 4 at row 0, column 1"));
        assert!(error(of(&[0; 2], plain(2))).contains("2 scales, 1 are needed"));
        assert!(
            error(of(&[0; 2], Affine { zeros: vec![], ..plain(1) }))
                .contains("0 zero points, 1 are needed")
        );
        for scale in [f32::NAN, f32::INFINITY, 2f32.powi(81), 2f32.powi(-81)] {
            assert!(
                error(of(&[0; 2], Affine { scales: vec![scale], ..plain(1) }))
                    .contains(&format!("scale {scale}"))
            );
        }
        for zero in [f32::NAN, f32::NEG_INFINITY, 1e6, 1e-40] {
            assert!(
                error(of(&[0; 2], Affine { zeros: vec![zero], ..plain(1) }))
                    .contains(&format!("zero point {zero}"))
            );
        }
        for size in [0, 16, 48, 1 << 40] {
            assert!(
                error(of(&[0; 2], Affine { group: Some(size), ..plain(1) }))
                    .contains(&format!("groups of {size} columns"))
            );
        }
        assert!(
            error(PackedInt::from_words(1, 2, Bits::Two, vec![0; 3], plain(1)))
                .contains("3 words for 1 rows of 4")
        );
        assert!(
            error(PackedInt::from_words(1, 2, Bits::Two, vec![16, 0, 0, 0], plain(1)))
                .contains("row 0 is not padded")
        );
        assert!(
            error(PackedInt::from_words(1, 1 << 29, Bits::Eight, vec![], plain(1)))
                .contains("in 32 bits")
        );
        assert!(
            error(PackedInt::from_words(1 << 32, 0, Bits::Eight, vec![], plain(1)))
                .contains("in 32 bits")
        );
    }
}
