//! Ternary matrices in host memory.

use super::{
    layout::{CODES_PER_WORD, ZEROS, bit, code_3, gather, row_words, scatter},
    scales::{Scales, check_scales, groups, invalid},
};
use crate::error::{Error, Result};
#[cfg(feature = "formats")]
use std::ops::Range;

/// A ternary matrix in host memory, rows = output features, packed as the kernels want it.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedTernary {
    rows: usize,
    columns: usize,
    words: Vec<u32>,
    scales: Scales,
}

impl PackedTernary {
    /// Packs row-major values, each -1, 0 or 1.
    ///
    /// # Errors
    /// [`Error::Length`] if `values` is not `rows × columns`; [`Error::Invalid`] for another value,
    /// a scale that is not finite, or scales that do not fit the shape.
    ///
    /// ```
    /// # use bitnet_wgpu::weights::{PackedTernary, Scales};
    /// let w = PackedTernary::from_values(2, 3, &[1, 0, -1, 0, 0, 1], Scales::Tensor(0.5))?;
    /// assert_eq!(w.dequantize(), [0.5, 0.0, -0.5, 0.0, 0.0, 0.5]);
    /// # Ok::<(), bitnet_wgpu::Error>(())
    /// ```
    pub fn from_values(rows: usize, columns: usize, values: &[i8], scales: Scales) -> Result<Self> {
        if rows.checked_mul(columns) != Some(values.len()) {
            return Err(Error::Length { shape: [rows, columns].into(), found: values.len() });
        }
        if let Some(at) = values.iter().position(|value| !(-1..=1).contains(value)) {
            return Err(invalid(format!(
                "value {} at row {}, column {}",
                values[at],
                at / columns,
                at % columns
            )));
        }
        Self::from_codes(rows, columns, scales, |row, column| {
            (values[row * columns + column] + 1) as u32
        })
    }

    /// Packs what `code(row, column)` gives: value + 1, at most 2.
    pub(crate) fn from_codes(
        rows: usize,
        columns: usize,
        scales: Scales,
        code: impl Fn(usize, usize) -> u32 + Sync,
    ) -> Result<Self> {
        Self::from_rows(rows, columns, scales, |row, words| {
            for (i, word) in words.iter_mut().take(columns.div_ceil(CODES_PER_WORD)).enumerate() {
                let first = i * CODES_PER_WORD;
                let mut codes = [1; CODES_PER_WORD];
                for (e, target) in codes.iter_mut().take(columns - first).enumerate() {
                    *target = code(row, first + e) as u8;
                }
                gather(std::slice::from_mut(word), &codes, 0);
            }
        })
    }

    /// Packs rows whose words `fill(row, words)` writes; they begin as zeros, and so must its
    /// padding stay. Codes must be at most 2.
    pub(crate) fn from_rows(
        rows: usize,
        columns: usize,
        scales: Scales,
        fill: impl Fn(usize, &mut [u32]) + Sync,
    ) -> Result<Self> {
        use rayon::prelude::*;
        check_scales(rows, columns, &scales)?;
        let stride = row_words(columns);
        let mut words = vec![ZEROS; rows * stride];
        words.par_chunks_mut(stride.max(1)).enumerate().for_each(|(row, words)| fill(row, words));
        Ok(Self { rows, columns, words, scales })
    }

    /// The matrix with all scales multiplied.
    #[cfg(feature = "formats")]
    pub(crate) fn scaled(self, factor: f32) -> Result<Self> {
        let scales = match self.scales {
            Scales::Tensor(scale) => Scales::Tensor(scale * factor),
            Scales::Segments(segments) => Scales::Segments(
                segments.into_iter().map(|(rows, scale)| (rows, scale * factor)).collect(),
            ),
            Scales::Groups { size, scales } => Scales::Groups {
                size,
                scales: scales.into_iter().map(|scale| scale * factor).collect(),
            },
        };
        check_scales(self.rows, self.columns, &scales)?;
        Ok(Self { scales, ..self })
    }

    /// The matrix whose row `i` is this one's row `source(i)`.
    #[cfg(feature = "formats")]
    pub(crate) fn reorder_rows(&self, source: impl Fn(usize) -> usize + Sync) -> Result<Self> {
        let scales = match &self.scales {
            Scales::Tensor(scale) => Scales::Tensor(*scale),
            Scales::Segments(_) => {
                let scales = self.row_scales();
                Scales::compress(None, (0..self.rows).map(|row| scales[source(row)]).collect())
            }
            Scales::Groups { size, scales } => {
                let groups = groups(self.columns, Some(*size));
                let scales = (0..self.rows)
                    .flat_map(|row| &scales[source(row) * groups..][..groups])
                    .copied()
                    .collect();
                Scales::Groups { size: *size, scales }
            }
        };
        Self::from_rows(self.rows, self.columns, scales, |row, words| {
            words.copy_from_slice(self.row(source(row)))
        })
    }

    /// Takes words that are already packed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a wrong count, code 3, or padding that is not zero.
    pub fn from_words(
        rows: usize,
        columns: usize,
        words: Vec<u32>,
        scales: Scales,
    ) -> Result<Self> {
        check_scales(rows, columns, &scales)?;
        if rows.checked_mul(row_words(columns)) != Some(words.len()) {
            return Err(invalid(format!(
                "{} words for {rows} rows of {}",
                words.len(),
                row_words(columns)
            )));
        }
        if let Some(at) = code_3(bytemuck::cast_slice(&words)) {
            return Err(invalid(format!("code 3 in word {}", at / 4)));
        }
        let packed = Self { rows, columns, words, scales };
        for row in 0..rows {
            if (columns..row_words(columns) * CODES_PER_WORD)
                .any(|column| packed.value(row, column) != 0)
            {
                return Err(invalid(format!("row {row} is not padded with zeros")));
            }
        }
        Ok(packed)
    }

    /// Unpacks transformers' layout for BitNet checkpoints: with R = ceil(rows / 4), byte (r, c)
    /// holds rows r, r + R, r + 2R, r + 3R of column c in bits 1-0, 3-2, 5-4, 7-6.
    ///
    /// # Errors
    /// [`Error::Length`] for a wrong byte count, [`Error::Invalid`] for code 3.
    pub fn from_transformers(
        rows: usize,
        columns: usize,
        bytes: &[u8],
        scales: Scales,
    ) -> Result<Self> {
        let quarter = rows.div_ceil(4);
        if quarter.checked_mul(columns) != Some(bytes.len()) {
            return Err(Error::Length { shape: [quarter, columns].into(), found: bytes.len() });
        }
        if let Some(at) = code_3(bytes) {
            return Err(invalid(format!("code 3 in byte {at}")));
        }
        Self::from_rows(rows, columns, scales, |row, words| {
            gather(words, &bytes[row % quarter * columns..][..columns], 2 * (row / quarter));
        })
    }

    /// The inverse of [`PackedTernary::from_transformers`], `[ceil(rows / 4), columns]`; rows that
    /// do not exist are zeros.
    pub fn to_transformers(&self) -> Vec<u8> {
        use rayon::prelude::*;
        let quarter = self.rows.div_ceil(4);
        let mut bytes = vec![0; quarter * self.columns];
        bytes.par_chunks_mut(self.columns.max(1)).enumerate().for_each(|(row, bytes)| {
            for i in 0..4 {
                match row + i * quarter {
                    row if row < self.rows => scatter(self.row(row), bytes, 2 * i),
                    _ => bytes.iter_mut().for_each(|byte| *byte |= 1 << (2 * i)),
                }
            }
        });
        bytes
    }

    /// Stacks matrices of as many columns along their rows; each keeps its scale, as a segment, or
    /// its groups. Where some have smaller groups, the others repeat their scales in these.
    ///
    /// # Errors
    /// [`Error::Invalid`] if columns differ, or the smallest groups do not divide the others.
    pub fn concat(parts: &[&Self]) -> Result<Self> {
        let columns = parts.first().ok_or_else(|| invalid("nothing to stack".into()))?.columns;
        if let Some(part) = parts.iter().find(|part| part.columns != columns) {
            return Err(invalid(format!("cannot stack {} columns on {columns}", part.columns)));
        }
        let size = parts.iter().filter_map(|part| part.group()).min();
        let step = size.unwrap_or(0);
        if let Some(other) =
            parts.iter().filter_map(|part| part.group()).find(|other| !other.is_multiple_of(step))
        {
            return Err(invalid(format!(
                "cannot stack scales per {other} columns on scales per {step} columns"
            )));
        }
        let scales_of = |part: &&Self| {
            let (scales, own, in_row) = (
                part.row_scales(),
                part.group().unwrap_or(columns.max(1)),
                groups(columns, part.group()),
            );
            let of_row = |row: usize| {
                (0..groups(columns, size)).map(move |group| row * in_row + group * step / own)
            };
            (0..part.rows).flat_map(of_row).map(|at| scales[at]).collect::<Vec<_>>()
        };
        let scales = Scales::compress(size, parts.iter().flat_map(scales_of).collect());
        let words = parts.iter().flat_map(|part| &part.words).copied().collect();
        Ok(Self { rows: parts.iter().map(|part| part.rows).sum(), columns, words, scales })
    }

    /// Some of its rows: what [`PackedTernary::concat`] had there.
    #[cfg(feature = "formats")]
    pub(crate) fn part(&self, rows: Range<usize>) -> Self {
        let (stride, groups) = (self.row_words(), groups(self.columns, self.group()));
        let scales = Scales::compress(
            self.group(),
            self.row_scales()[rows.start * groups..rows.end * groups].to_vec(),
        );
        let words = self.words[rows.start * stride..rows.end * stride].to_vec();
        Self { rows: rows.len(), columns: self.columns, words, scales }
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The packed codes, a row after another.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The scales.
    pub fn scales(&self) -> &Scales {
        &self.scales
    }

    /// The words of one row.
    pub(crate) fn row(&self, row: usize) -> &[u32] {
        &self.words[row * self.row_words()..][..self.row_words()]
    }

    /// Words in a row.
    pub(crate) fn row_words(&self) -> usize {
        row_words(self.columns)
    }

    /// The scale of every group of a row; one where scales do not go per group.
    pub(crate) fn row_scales(&self) -> Vec<f32> {
        self.scales.expand(self.rows)
    }

    /// The group size, where scales go per group.
    pub fn group(&self) -> Option<usize> {
        match self.scales {
            Scales::Groups { size, .. } => Some(size),
            _ => None,
        }
    }

    /// One value: -1, 0 or 1.
    pub fn value(&self, row: usize, column: usize) -> i8 {
        (self.row(row)[column / CODES_PER_WORD] >> bit(column % CODES_PER_WORD) & 3) as i8 - 1
    }

    /// All values, row-major.
    pub fn to_values(&self) -> Vec<i8> {
        (0..self.rows)
            .flat_map(|row| (0..self.columns).map(move |column| self.value(row, column)))
            .collect()
    }

    /// All values times their scales, row-major: the CPU reference of
    /// [`TernaryMatrix::dequantize`](crate::weights::TernaryMatrix::dequantize).
    pub fn dequantize(&self) -> Vec<f32> {
        let scales = self.row_scales();
        let size = self.group().unwrap_or(self.columns).max(1);
        let groups = groups(self.columns, self.group());
        let values =
            (0..self.rows).flat_map(|row| (0..self.columns).map(move |column| (row, column)));
        values
            .map(|(row, column)| {
                f32::from(self.value(row, column)) * scales[row * groups + column / size]
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    #[test]
    fn packing_round_trips() {
        let mut rng = StdRng::seed_from_u64(1);
        // Every tail of a word, of a group of words, and of a byte of transformers' rows.
        for (rows, columns) in (0..9).flat_map(|rows| (0..150).map(move |columns| (rows, columns)))
        {
            let values: Vec<i8> = (0..rows * columns).map(|_| rng.random_range(-1..=1)).collect();
            let w =
                PackedTernary::from_values(rows, columns, &values, Scales::Tensor(0.75)).unwrap();
            assert_eq!(w.to_values(), values, "{rows} × {columns}");
            assert_eq!(
                PackedTernary::from_words(rows, columns, w.words().to_vec(), w.scales().clone())
                    .unwrap(),
                w
            );
            assert_eq!(
                PackedTernary::from_transformers(
                    rows,
                    columns,
                    &w.to_transformers(),
                    w.scales().clone()
                )
                .unwrap(),
                w
            );
        }
    }

    #[test]
    fn word_layout_is_the_documented_one() {
        // Element 1 lies in the second byte, element 4 in the second field of the first.
        let mut values = [0i8; 16];
        (values[1], values[4]) = (1, -1);
        let w = PackedTernary::from_values(1, 16, &values, Scales::Tensor(1.0)).unwrap();
        assert_eq!(
            w.words(),
            [0x5555_5555 + (1 << 8) - (1 << 2), 0x5555_5555, 0x5555_5555, 0x5555_5555]
        );
    }

    #[test]
    fn transformers_layout_is_the_documented_one() {
        // Five rows of one column: R = 2, byte r holds rows r, r + 2, r + 4, r + 6.
        let w = PackedTernary::from_values(5, 1, &[1, -1, 0, 1, -1], Scales::Tensor(1.0)).unwrap();
        assert_eq!(w.to_transformers(), [0b01_00_01_10, 0b01_01_10_00]);
    }

    #[test]
    fn bad_input_is_named() {
        let error = |r: Result<PackedTernary>| r.unwrap_err().to_string();
        assert!(
            error(PackedTernary::from_values(1, 2, &[0, 2], Scales::Tensor(1.0)))
                .contains("value 2 at row 0, column 1")
        );
        assert!(
            error(PackedTernary::from_values(2, 2, &[0; 3], Scales::Tensor(1.0)))
                .contains("[2, 2]")
        );
        assert!(
            error(PackedTernary::from_values(1, 1, &[0], Scales::Tensor(f32::NAN))).contains("NaN")
        );
        assert!(
            error(PackedTernary::from_values(3, 1, &[0; 3], Scales::Segments(vec![(2, 1.0)])))
                .contains("2 rows")
        );
        let groups = Scales::Groups { size: 24, scales: vec![1.0] };
        assert!(
            error(PackedTernary::from_values(1, 24, &[0; 24], groups)).contains("multiple of 16")
        );
        assert!(
            error(PackedTernary::from_transformers(4, 2, &[0, 0b1100], Scales::Tensor(1.0)))
                .contains("byte 1")
        );
        let far: Vec<u8> = (0..150_000).map(|at| if at >= 149_990 { 3 } else { 0 }).collect();
        assert!(
            error(PackedTernary::from_transformers(4, far.len(), &far, Scales::Tensor(1.0)))
                .contains("byte 149990")
        );
        assert!(
            error(PackedTernary::from_words(
                1,
                1,
                vec![3, ZEROS, ZEROS, ZEROS],
                Scales::Tensor(1.0)
            ))
            .contains("word 0")
        );
        assert!(
            error(PackedTernary::from_words(
                1,
                1,
                vec![0, ZEROS, ZEROS, ZEROS],
                Scales::Tensor(1.0)
            ))
            .contains("padded")
        );
        let (a, b) = (
            PackedTernary::from_values(1, 1, &[0], Scales::Tensor(1.0)),
            PackedTernary::from_values(1, 2, &[0; 2], Scales::Tensor(1.0)),
        );
        assert!(
            error(PackedTernary::concat(&[&a.unwrap(), &b.unwrap()])).contains("2 columns on 1")
        );
    }

    #[test]
    fn segments_follow_their_rows() {
        let part = |rows, value, scale| {
            PackedTernary::from_values(rows, 1, &vec![value; rows], Scales::Tensor(scale)).unwrap()
        };
        let fused = PackedTernary::concat(&[&part(3, 1, 2.0), &part(1, -1, 3.0), &part(2, 1, 5.0)])
            .unwrap();
        assert_eq!(fused.scales(), &Scales::Segments(vec![(3, 2.0), (1, 3.0), (2, 5.0)]));
        assert_eq!(fused.dequantize(), [2.0, 2.0, 2.0, -3.0, 5.0, 5.0]);
        #[cfg(feature = "formats")]
        {
            let reordered = fused.reorder_rows(|row| 5 - row).unwrap();
            assert_eq!(reordered.dequantize(), [5.0, 5.0, -3.0, 2.0, 2.0, 2.0]);
            assert_eq!(reordered.scales(), &Scales::Segments(vec![(2, 5.0), (1, 3.0), (3, 2.0)]));
            assert_eq!((fused.part(0..3), fused.part(3..4)), (part(3, 1, 2.0), part(1, -1, 3.0)));
        }
    }

    #[test]
    #[cfg(feature = "formats")]
    fn groups_follow_their_rows() {
        let grouped = |size, scales: &[f32]| {
            let scales = Scales::Groups { size, scales: scales.to_vec() };
            PackedTernary::from_values(1, 20, &[1; 20], scales).unwrap()
        };
        let plain = PackedTernary::from_values(2, 20, &[-1; 40], Scales::Tensor(7.0)).unwrap();
        let fused =
            PackedTernary::concat(&[&plain, &grouped(16, &[2.0, 3.0]), &grouped(16, &[4.0, 5.0])])
                .unwrap();
        let scales = vec![7.0, 7.0, 7.0, 7.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!((fused.rows(), fused.scales()), (4, &Scales::Groups { size: 16, scales }));
        assert_eq!(fused.dequantize()[55..62], [2.0, 3.0, 3.0, 3.0, 3.0, 4.0, 4.0]);
        let error =
            PackedTernary::concat(&[&grouped(32, &[2.0]), &grouped(48, &[2.0])]).unwrap_err();
        assert!(error.to_string().contains("per 48 columns on scales per 32"), "{error}");
        let wider =
            PackedTernary::concat(&[&grouped(32, &[4.0]), &grouped(16, &[2.0, 3.0])]).unwrap();
        assert_eq!(wider.scales(), &Scales::Groups { size: 16, scales: vec![4.0, 4.0, 2.0, 3.0] });
        let reordered = fused.reorder_rows(|row| 3 - row).unwrap();
        assert_eq!(reordered.dequantize()[..20], fused.dequantize()[60..]);
        assert_eq!(reordered.reorder_rows(|row| 3 - row).unwrap(), fused);
        assert_eq!(
            (fused.part(2..3), fused.part(3..4)),
            (grouped(16, &[2.0, 3.0]), grouped(16, &[4.0, 5.0]))
        );
    }
}
