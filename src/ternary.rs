//! Ternary matrices: 2-bit codes packed for the kernels, and their scales.
//!
//! A code is value + 1, so 0, 1, 2 stand for -1, 0, +1; 3 does not occur. Sixteen codes make a word: element `e` of a word lies at
//! bit `8·(e mod 4) + 2·(e div 4)`. Masking a word with `0x03030303 << 2f` gives elements `4f .. 4f + 4` as the bytes of an integer dot
//! product; masking it with `0x00030003 << 2f` gives elements `4f` and `4f + 2` as two half-precision numbers. A row is padded with
//! zeros (code 1) to whole groups of four words, so kernels may read 16 bytes at a time and need no tail.

use crate::{Context, Error, Result, Tensor};

/// Elements in one word.
pub(crate) const CODES_PER_WORD: usize = 16;

/// Words in a row of `columns` elements.
pub(crate) const fn row_words(columns: usize) -> usize {
    columns.div_ceil(64) * 4
}

/// The bit at which element `e` of a word lies.
const fn bit(e: usize) -> usize {
    8 * (e % 4) + 2 * (e / 4)
}

/// A word of sixteen zeros.
pub(crate) const ZEROS: u32 = 0x5555_5555;

/// Packs codes that lie one a byte, at bit `shift` of each; what lies in the other bits does not matter. Elements `4f .. 4f + 4` of a word
/// are its bytes at bit `2f`, so sixteen bytes become a word in four steps.
pub(crate) fn gather(words: &mut [u32], bytes: &[u8], shift: usize) {
    let pack = |bytes: &[u8; 16]| {
        let (quads, _) = bytes.as_chunks::<4>();
        (0..4).fold(0, |word, f| word | (u32::from_le_bytes(quads[f]) >> shift & 0x0303_0303) << (2 * f))
    };
    let (whole, tail) = bytes.as_chunks::<16>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = pack(bytes);
    }
    if let (Some(word), false) = (words.get_mut(whole.len()), tail.is_empty()) {
        // Code 1 in every bit pair: zeros.
        let mut padded = [0x55; 16];
        padded[..tail.len()].copy_from_slice(tail);
        *word = pack(&padded);
    }
}

/// The inverse of [`gather`]: sets bit `shift` and the next of every byte, which were zero.
fn scatter(words: &[u32], bytes: &mut [u8], shift: usize) {
    let spread = |word: u32| std::array::from_fn::<_, 4, _>(|f| (word >> (2 * f) & 0x0303_0303) << shift);
    let (whole, tail) = bytes.as_chunks_mut::<16>();
    for (word, bytes) in words.iter().zip(&mut *whole) {
        let (quads, _) = bytes.as_chunks_mut::<4>();
        for (quad, codes) in quads.iter_mut().zip(spread(*word)) {
            *quad = (u32::from_le_bytes(*quad) | codes).to_le_bytes();
        }
    }
    let last = words.get(whole.len()).map_or([0; 4], |word| spread(*word)).map(u32::to_le_bytes);
    tail.iter_mut().zip(last.as_flattened()).for_each(|(byte, code)| *byte |= code);
}

/// The first byte that holds code 3.
pub(crate) fn code_3(bytes: &[u8]) -> Option<usize> {
    use rayon::prelude::*;
    const CHUNK: usize = 1 << 16;
    let bad = |byte: u8| byte & byte >> 1 & 0x55;
    // Without leaving early, so that the compiler looks at many bytes at once.
    let chunk = bytes.par_chunks(CHUNK).position_first(|chunk| chunk.iter().fold(0, |all, &byte| all | bad(byte)) != 0)?;
    let start = chunk * CHUNK;
    bytes[start..].iter().position(|&byte| bad(byte) != 0).map(|at| start + at)
}

/// What the integer codes are multiplied by.
#[derive(Clone, Debug, PartialEq)]
pub enum Scales {
    /// One for the whole matrix: BitNet b1.58's β = max(mean|W|, 1e-5).
    Tensor(f32),
    /// One for each run of rows, as (rows, scale): matrices of one tensor scale each, fused along their rows (q, k and v, say).
    Segments(Vec<(usize, f32)>),
    /// One for every `size` neighbouring columns of a row, row by row; `size` is a multiple of 16, the last group may be short.
    Groups {
        /// Columns of a group.
        size: usize,
        /// `[rows, ceil(columns / size)]`, row-major.
        scales: Vec<f32>,
    },
}

impl Scales {
    /// Row-major `[rows, groups]`: what kernels index.
    fn expand(&self, rows: usize) -> Vec<f32> {
        match self {
            Self::Tensor(scale) => vec![*scale; rows],
            Self::Segments(segments) => segments.iter().flat_map(|&(rows, scale)| std::iter::repeat_n(scale, rows)).collect(),
            Self::Groups { scales, .. } => scales.clone(),
        }
    }

    /// The inverse of `expand`; runs of equal scales become segments.
    fn compress(group: Option<usize>, scales: Vec<f32>) -> Self {
        if let Some(size) = group {
            return Self::Groups { size, scales };
        }
        let mut segments: Vec<(usize, f32)> = Vec::new();
        for scale in scales {
            match segments.last_mut() {
                Some((rows, last)) if last.to_bits() == scale.to_bits() => *rows += 1,
                _ => segments.push((1, scale)),
            }
        }
        match segments[..] {
            [] => Self::Tensor(1.0),
            [(_, scale)] => Self::Tensor(scale),
            _ => Self::Segments(segments),
        }
    }
}

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
    /// [`Error::Length`] if `values` is not `rows × columns`; [`Error::Invalid`] for another value, a scale that is not finite,
    /// or scales that do not fit the shape.
    ///
    /// ```
    /// # use bitnet_wgpu::{PackedTernary, Scales};
    /// let w = PackedTernary::from_values(2, 3, &[1, 0, -1, 0, 0, 1], Scales::Tensor(0.5))?;
    /// assert_eq!(w.dequantize(), [0.5, 0.0, -0.5, 0.0, 0.0, 0.5]);
    /// # Ok::<(), bitnet_wgpu::Error>(())
    /// ```
    pub fn from_values(rows: usize, columns: usize, values: &[i8], scales: Scales) -> Result<Self> {
        if rows.checked_mul(columns) != Some(values.len()) {
            return Err(Error::Length { shape: [rows, columns].into(), found: values.len() });
        }
        if let Some(at) = values.iter().position(|value| !(-1..=1).contains(value)) {
            return Err(invalid(format!("value {} at row {}, column {}", values[at], at / columns, at % columns)));
        }
        Self::from_codes(rows, columns, scales, |row, column| (values[row * columns + column] + 1) as u32)
    }

    /// Packs what `code(row, column)` gives: value + 1, at most 2.
    pub(crate) fn from_codes(rows: usize, columns: usize, scales: Scales, code: impl Fn(usize, usize) -> u32 + Sync) -> Result<Self> {
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

    /// Packs rows whose words `fill(row, words)` writes; they begin as zeros, and so must its padding stay. Codes must be at most 2.
    pub(crate) fn from_rows(rows: usize, columns: usize, scales: Scales, fill: impl Fn(usize, &mut [u32]) + Sync) -> Result<Self> {
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
            Scales::Segments(segments) => Scales::Segments(segments.into_iter().map(|(rows, scale)| (rows, scale * factor)).collect()),
            Scales::Groups { size, scales } => Scales::Groups { size, scales: scales.into_iter().map(|scale| scale * factor).collect() },
        };
        check_scales(self.rows, self.columns, &scales)?;
        Ok(Self { scales, ..self })
    }

    /// The matrix whose row `i` is this one's row `source(i)`, where all rows share their scale or have their own groups.
    #[cfg(feature = "formats")]
    pub(crate) fn reorder_rows(&self, source: impl Fn(usize) -> usize + Sync) -> Result<Self> {
        let scales = match &self.scales {
            Scales::Tensor(scale) => Scales::Tensor(*scale),
            Scales::Segments(_) => return Err(invalid("rows of fused matrices cannot be reordered".into())),
            Scales::Groups { size, scales } => {
                let groups = groups(self.columns, Some(*size));
                let scales = (0..self.rows).flat_map(|row| &scales[source(row) * groups..][..groups]).copied().collect();
                Scales::Groups { size: *size, scales }
            }
        };
        Self::from_rows(self.rows, self.columns, scales, |row, words| words.copy_from_slice(self.row(source(row))))
    }

    /// Takes words that are already packed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a wrong count, code 3, or padding that is not zero.
    pub fn from_words(rows: usize, columns: usize, words: Vec<u32>, scales: Scales) -> Result<Self> {
        check_scales(rows, columns, &scales)?;
        if rows.checked_mul(row_words(columns)) != Some(words.len()) {
            return Err(invalid(format!("{} words for {rows} rows of {}", words.len(), row_words(columns))));
        }
        if let Some(at) = words.iter().position(|word| word & word >> 1 & ZEROS != 0) {
            return Err(invalid(format!("code 3 in word {at}")));
        }
        let packed = Self { rows, columns, words, scales };
        for row in 0..rows {
            if (columns..row_words(columns) * CODES_PER_WORD).any(|column| packed.value(row, column) != 0) {
                return Err(invalid(format!("row {row} is not padded with zeros")));
            }
        }
        Ok(packed)
    }

    /// Unpacks transformers' layout for BitNet checkpoints: with R = ceil(rows / 4), byte (r, c) holds rows r, r + R, r + 2R, r + 3R of
    /// column c in bits 1-0, 3-2, 5-4, 7-6.
    ///
    /// # Errors
    /// [`Error::Length`] for a wrong byte count, [`Error::Invalid`] for code 3.
    pub fn from_transformers(rows: usize, columns: usize, bytes: &[u8], scales: Scales) -> Result<Self> {
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

    /// The inverse of [`PackedTernary::from_transformers`], `[ceil(rows / 4), columns]`; rows that do not exist are zeros.
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

    /// Stacks matrices of as many columns along their rows; each keeps its scale, as a segment, or its groups. Where only some have groups, the
    /// others repeat their scale in every group.
    ///
    /// # Errors
    /// [`Error::Invalid`] if columns or group sizes differ.
    pub fn concat(parts: &[&Self]) -> Result<Self> {
        let columns = parts.first().ok_or_else(|| invalid("nothing to stack".into()))?.columns;
        if let Some(part) = parts.iter().find(|part| part.columns != columns) {
            return Err(invalid(format!("cannot stack {} columns on {columns}", part.columns)));
        }
        let size = parts.iter().find_map(|part| part.group());
        if let Some(other) = parts.iter().filter_map(|part| part.group()).find(|&other| Some(other) != size) {
            return Err(invalid(format!("cannot stack scales by groups of {other} columns on groups of {}", size.unwrap_or(0))));
        }
        let groups = groups(columns, size);
        let scales_of = |part: &&Self| {
            let repeat = if part.group() == size { 1 } else { groups };
            part.row_scales().into_iter().flat_map(move |scale| std::iter::repeat_n(scale, repeat)).collect::<Vec<_>>()
        };
        let scales = Scales::compress(size, parts.iter().flat_map(scales_of).collect());
        let words = parts.iter().flat_map(|part| &part.words).copied().collect();
        Ok(Self { rows: parts.iter().map(|part| part.rows).sum(), columns, words, scales })
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

    /// The scale of every group of a row; one where scales do not go by groups.
    pub(crate) fn row_scales(&self) -> Vec<f32> {
        self.scales.expand(self.rows)
    }

    /// The group size, where scales go by groups.
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
        (0..self.rows).flat_map(|row| (0..self.columns).map(move |column| self.value(row, column))).collect()
    }

    /// All values times their scales, row-major: the CPU twin of [`bitnet::dequantize_weights`](crate::bitnet::dequantize_weights).
    pub fn dequantize(&self) -> Vec<f32> {
        let scales = self.row_scales();
        let size = self.group().unwrap_or(self.columns).max(1);
        let groups = groups(self.columns, self.group());
        let values = (0..self.rows).flat_map(|row| (0..self.columns).map(move |column| (row, column)));
        values.map(|(row, column)| f32::from(self.value(row, column)) * scales[row * groups + column / size]).collect()
    }

    /// Copies it to the GPU.
    pub fn upload(&self, context: &Context) -> Result<TernaryMatrix> {
        Ok(TernaryMatrix {
            codes: context.upload(&self.words, [self.rows, row_words(self.columns)])?,
            scales: context.upload(&self.row_scales(), [self.rows, groups(self.columns, self.group())])?,
            rows: self.rows,
            columns: self.columns,
            group: self.group(),
        })
    }
}

/// Scales in a row.
pub(crate) fn groups(columns: usize, group: Option<usize>) -> usize {
    group.map_or(1, |size| columns.div_ceil(size))
}

fn check_scales(rows: usize, columns: usize, scales: &Scales) -> Result<()> {
    if rows > u32::MAX as usize || columns > u32::MAX as usize {
        return Err(invalid(format!("{rows} × {columns}; kernels count in 32 bits")));
    }
    let (expected, found) = match scales {
        Scales::Tensor(_) => (1, 1),
        Scales::Segments(segments) => (rows, segments.iter().fold(0usize, |sum, s| sum.saturating_add(s.0))),
        Scales::Groups { size, scales } => {
            if *size == 0 || !size.is_multiple_of(CODES_PER_WORD) {
                return Err(invalid(format!("groups of {size} columns; a multiple of 16 is needed")));
            }
            (rows.saturating_mul(groups(columns, Some(*size))), scales.len())
        }
    };
    if expected != found {
        return Err(invalid(format!("scales for {found} rows or groups, {expected} are needed")));
    }
    // So that no product or quotient of scales leaves the normal floats, where devices differ.
    let sound = |scale: &f32| *scale == 0.0 || (-80..=80).contains(&(i32::from((scale.to_bits() >> 23) as u8) - 127));
    let broken = match scales {
        Scales::Tensor(scale) => Some(scale).filter(|scale| !sound(scale)),
        Scales::Segments(segments) => segments.iter().map(|segment| &segment.1).find(|scale| !sound(scale)),
        Scales::Groups { scales, .. } => scales.iter().find(|scale| !sound(scale)),
    };
    broken.map_or(Ok(()), |scale| Err(invalid(format!("scale {scale}; magnitudes from 2^-80 to 2^80, and 0, are supported"))))
}

fn invalid(what: String) -> Error {
    Error::Invalid { op: "ternary matrix", what }
}

/// A ternary matrix on the GPU: what BitLinear multiplies by. Clones share its buffers.
#[derive(Clone, Debug)]
pub struct TernaryMatrix {
    pub(crate) codes: Tensor<u32>,
    /// `[rows, groups]`
    pub(crate) scales: Tensor<f32>,
    rows: usize,
    columns: usize,
    group: Option<usize>,
}

impl TernaryMatrix {
    /// A matrix whose codes and scales, one a row, a kernel will write.
    pub(crate) fn uninit(context: &Context, rows: usize, columns: usize) -> Result<Self> {
        let codes = Tensor::uninit(context, [rows, row_words(columns)])?;
        Ok(Self { codes, scales: Tensor::uninit(context, [rows, 1])?, rows, columns, group: None })
    }

    pub(crate) fn with_scales(&self, scales: Tensor<f32>) -> Self {
        Self { scales, ..self.clone() }
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The group size, where scales go by groups of columns.
    pub fn group(&self) -> Option<usize> {
        self.group
    }

    /// Words in a row.
    pub(crate) fn row_words(&self) -> usize {
        row_words(self.columns)
    }

    /// Bytes of codes that one pass over the matrix reads.
    pub fn code_bytes(&self) -> usize {
        4 * self.rows * self.row_words()
    }

    /// Codes and scales as they lie in memory, for tests.
    #[doc(hidden)]
    pub fn tensors(&self) -> (&Tensor<u32>, &Tensor<f32>) {
        (&self.codes, &self.scales)
    }

    /// Copies it back.
    pub async fn read(&self) -> Result<PackedTernary> {
        let (words, scales) = (self.codes.read(), self.scales.read());
        let scales = Scales::compress(self.group, scales.await?);
        PackedTernary::from_words(self.rows, self.columns, words.await?, scales)
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
        for (rows, columns) in (0..9).flat_map(|rows| (0..150).map(move |columns| (rows, columns))) {
            let values: Vec<i8> = (0..rows * columns).map(|_| rng.random_range(-1..=1)).collect();
            let w = PackedTernary::from_values(rows, columns, &values, Scales::Tensor(0.75)).unwrap();
            assert_eq!(w.to_values(), values, "{rows} × {columns}");
            assert_eq!(PackedTernary::from_words(rows, columns, w.words().to_vec(), w.scales().clone()).unwrap(), w);
            assert_eq!(PackedTernary::from_transformers(rows, columns, &w.to_transformers(), w.scales().clone()).unwrap(), w);
        }
    }

    #[test]
    fn word_layout_is_the_documented_one() {
        // Element 1 lies in the second byte, element 4 in the second field of the first.
        let mut values = [0i8; 16];
        (values[1], values[4]) = (1, -1);
        let w = PackedTernary::from_values(1, 16, &values, Scales::Tensor(1.0)).unwrap();
        assert_eq!(w.words(), [0x5555_5555 + (1 << 8) - (1 << 2), 0x5555_5555, 0x5555_5555, 0x5555_5555]);
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
        assert!(error(PackedTernary::from_values(1, 2, &[0, 2], Scales::Tensor(1.0))).contains("value 2 at row 0, column 1"));
        assert!(error(PackedTernary::from_values(2, 2, &[0; 3], Scales::Tensor(1.0))).contains("[2, 2]"));
        assert!(error(PackedTernary::from_values(1, 1, &[0], Scales::Tensor(f32::NAN))).contains("NaN"));
        assert!(error(PackedTernary::from_values(3, 1, &[0; 3], Scales::Segments(vec![(2, 1.0)]))).contains("2 rows"));
        let groups = Scales::Groups { size: 24, scales: vec![1.0] };
        assert!(error(PackedTernary::from_values(1, 24, &[0; 24], groups)).contains("multiple of 16"));
        assert!(error(PackedTernary::from_transformers(4, 2, &[0, 0b1100], Scales::Tensor(1.0))).contains("byte 1"));
        let far: Vec<u8> = (0..150_000).map(|at| if at >= 149_990 { 3 } else { 0 }).collect();
        assert!(error(PackedTernary::from_transformers(4, far.len(), &far, Scales::Tensor(1.0))).contains("byte 149990"));
        assert!(error(PackedTernary::from_words(1, 1, vec![3, ZEROS, ZEROS, ZEROS], Scales::Tensor(1.0))).contains("word 0"));
        assert!(error(PackedTernary::from_words(1, 1, vec![0, ZEROS, ZEROS, ZEROS], Scales::Tensor(1.0))).contains("padded"));
        let (a, b) =
            (PackedTernary::from_values(1, 1, &[0], Scales::Tensor(1.0)), PackedTernary::from_values(1, 2, &[0; 2], Scales::Tensor(1.0)));
        assert!(error(PackedTernary::concat(&[&a.unwrap(), &b.unwrap()])).contains("2 columns on 1"));
    }

    #[test]
    fn segments_follow_their_rows() {
        let part = |rows, value, scale| PackedTernary::from_values(rows, 1, &vec![value; rows], Scales::Tensor(scale)).unwrap();
        let fused = PackedTernary::concat(&[&part(3, 1, 2.0), &part(1, -1, 3.0), &part(2, 1, 5.0)]).unwrap();
        assert_eq!(fused.scales(), &Scales::Segments(vec![(3, 2.0), (1, 3.0), (2, 5.0)]));
        assert_eq!(fused.dequantize(), [2.0, 2.0, 2.0, -3.0, 5.0, 5.0]);
    }

    #[test]
    #[cfg(feature = "formats")]
    fn groups_follow_their_rows() {
        let grouped = |size, scales: &[f32]| {
            let scales = Scales::Groups { size, scales: scales.to_vec() };
            PackedTernary::from_values(1, 20, &[1; 20], scales).unwrap()
        };
        let plain = PackedTernary::from_values(2, 20, &[-1; 40], Scales::Tensor(7.0)).unwrap();
        let fused = PackedTernary::concat(&[&plain, &grouped(16, &[2.0, 3.0]), &grouped(16, &[4.0, 5.0])]).unwrap();
        let scales = vec![7.0, 7.0, 7.0, 7.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!((fused.rows(), fused.scales()), (4, &Scales::Groups { size: 16, scales }));
        assert_eq!(fused.dequantize()[55..62], [2.0, 3.0, 3.0, 3.0, 3.0, 4.0, 4.0]);
        let error = PackedTernary::concat(&[&grouped(16, &[2.0, 3.0]), &grouped(32, &[2.0])]).unwrap_err();
        assert!(error.to_string().contains("groups of 32 columns on groups of 16"), "{error}");
        let reordered = fused.reorder_rows(|row| 3 - row).unwrap();
        assert_eq!(reordered.dequantize()[..20], fused.dequantize()[60..]);
        assert_eq!(reordered.reorder_rows(|row| 3 - row).unwrap(), fused);
    }
}
