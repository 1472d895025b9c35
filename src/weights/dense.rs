//! Dense matrices as checkpoints store them: embeddings and heads in 32 or 16 bits, or in 8 bits
//! with a scale a row.
//!
//! Rows are padded with zeros to whole groups of four words, so kernels may read 16 bytes at a time
//! and need no tail.

use crate::{
    error::{Error, Result},
    gpu::{context::Context, tensor::Tensor},
    limits::MOST_EMPTY_ROWS,
};
use half::{bf16, f16};

/// What the elements of a dense matrix are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DenseElement {
    /// 32-bit floats.
    F32,
    /// f16 floats.
    F16,
    /// The upper half of 32-bit floats.
    Bf16,
    /// 8-bit integers from -127 to 127, with a scale a row.
    Int8,
}

impl DenseElement {
    /// Bytes of one.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }

    /// 32-bit words in a row of `columns`.
    pub(crate) const fn row_words(self, columns: usize) -> usize {
        (columns * self.bytes()).div_ceil(16) * 4
    }
}

/// A dense matrix in host memory, packed as the kernels want it.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedDense {
    element: DenseElement,
    rows: usize,
    columns: usize,
    words: Vec<u32>,
    /// One a row, for [`DenseElement::Int8`]; else none.
    scales: Vec<f32>,
}

impl PackedDense {
    /// Packs row-major floats as they are.
    ///
    /// # Errors
    /// [`Error::Length`] if `values` is not `rows × columns`.
    pub fn from_f32(rows: usize, columns: usize, values: &[f32]) -> Result<Self> {
        Self::from_bytes(DenseElement::F32, rows, columns, bytemuck::cast_slice(values))
    }

    /// Packs row-major little-endian elements: the bytes of a file.
    ///
    /// # Errors
    /// [`Error::Length`] for a wrong number of bytes, [`Error::Invalid`] for
    /// [`DenseElement::Int8`], which needs scales, and for too many rows without columns.
    pub fn from_bytes(
        element: DenseElement,
        rows: usize,
        columns: usize,
        bytes: &[u8],
    ) -> Result<Self> {
        if element == DenseElement::Int8 {
            return Err(Error::Invalid {
                op: "dense matrix",
                what: "8-bit elements need scales: see PackedDense::quantize".into(),
            });
        }
        // Rows without columns take no bytes, but scales.
        if columns == 0 && rows > MOST_EMPTY_ROWS {
            return Err(Error::Invalid {
                op: "dense matrix",
                what: format!("{rows} rows without columns"),
            });
        }
        let needed = rows.checked_mul(columns).and_then(|len| len.checked_mul(element.bytes()));
        if needed != Some(bytes.len()) {
            return Err(Error::Length {
                shape: [rows, columns].into(),
                found: bytes.len() / element.bytes(),
            });
        }
        let stride = element.row_words(columns);
        let mut words = vec![0u32; rows * stride];
        let row_bytes = columns * element.bytes();
        for row in 0..if row_bytes == 0 { 0 } else { rows } {
            let target: &mut [u8] = bytemuck::cast_slice_mut(&mut words[row * stride..][..stride]);
            target[..row_bytes].copy_from_slice(&bytes[row * row_bytes..][..row_bytes]);
        }
        Ok(Self { element, rows, columns, words, scales: Vec::new() })
    }

    /// Takes words that are already packed, and the scales of rows for [`DenseElement::Int8`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a wrong count, padding that is not zero, or a code of -128, which no
    /// float is quantized to.
    #[cfg(feature = "formats")]
    pub(crate) fn from_words(
        element: DenseElement,
        rows: usize,
        columns: usize,
        words: Vec<u32>,
        scales: Vec<f32>,
    ) -> Result<Self> {
        let invalid = |what| Err(Error::Invalid { op: "dense matrix", what });
        let (stride, expected) =
            (element.row_words(columns), if element == DenseElement::Int8 { rows } else { 0 });
        if rows.checked_mul(stride) != Some(words.len()) || scales.len() != expected {
            return invalid(format!(
                "{} words and {} scales for {rows} rows of {stride}",
                words.len(),
                scales.len()
            ));
        }
        let row_bytes = columns * element.bytes();
        let padded = |row: &[u32]| {
            bytemuck::cast_slice::<_, u8>(row)[row_bytes..].iter().all(|&byte| byte == 0)
        };
        if let Some(row) = words.chunks_exact(stride.max(1)).position(|row| !padded(row)) {
            return invalid(format!("row {row} is not padded with zeros"));
        }
        if element == DenseElement::Int8 && bytemuck::cast_slice::<_, i8>(&words).contains(&i8::MIN)
        {
            return invalid("a code is -128; -127 to 127 are used".into());
        }
        Ok(Self { element, rows, columns, words, scales })
    }

    /// Where there is a number that is not finite, if there is one: row and column.
    pub(crate) fn not_finite(&self) -> Option<(usize, usize)> {
        use rayon::prelude::*;
        const CHUNK: usize = 1 << 14;
        if self.element == DenseElement::Int8 {
            let row = self.scales.iter().position(|scale| !scale.is_finite())?;
            return Some((row, 0));
        }
        // Exponents of ones: of the word, or of its halves.
        let (bits, [low, high]) = match self.element {
            DenseElement::F32 => (32, [0x7f80_0000u32; 2]),
            DenseElement::Bf16 => (16, [0x7f80, 0x7f80_0000]),
            _ => (16, [0x7c00, 0x7c00_0000]),
        };
        let stride = self.element.row_words(self.columns);
        let bad = |word: &u32| (word & low == low) | (word & high == high);
        // Without leaving early, so that the compiler looks at many words at once.
        let any = |chunk: &[u32]| chunk.iter().fold(false, |any, word| any | bad(word));
        let start = self.words.par_chunks(CHUNK).position_first(any)? * CHUNK;
        let at = start + self.words[start..].iter().position(bad)?;
        let within = at % stride * 32 / bits;
        Some((at / stride, within + usize::from(bits == 16 && self.words[at] & low != low)))
    }

    /// Returns the matrix in int8: every row divided by its largest magnitude / 127 and rounded,
    /// ties to even. At most 0.4 % of a row's largest element off; published perplexities hardly
    /// move (17.11 to 17.12 for the head of BitNet b1.58 2B4T).
    pub fn quantize(&self) -> Self {
        use rayon::prelude::*;
        let stride = DenseElement::Int8.row_words(self.columns);
        let mut words = vec![0u32; self.rows * stride];
        let mut scales = vec![0f32; self.rows];
        words.par_chunks_mut(stride.max(1)).zip(&mut scales).enumerate().for_each(
            |(row, (words, scale))| {
                let values = self.row(row);
                // `f32::max` drops a NaN. Here one makes its row's scale NaN, and so is seen in the
                // row's logit.
                let nan = values.iter().any(|v| v.is_nan());
                let largest = if nan {
                    f32::NAN
                } else {
                    values.iter().fold(0f32, |max, v| max.max(v.abs()))
                };
                let factor = if largest > 0.0 { 127.0 / largest } else { 0.0 };
                let codes: &mut [i8] = bytemuck::cast_slice_mut(words);
                for (code, v) in codes.iter_mut().zip(&values) {
                    *code = (v * factor).round_ties_even() as i8;
                }
                *scale = largest / 127.0;
            },
        );
        Self { element: DenseElement::Int8, rows: self.rows, columns: self.columns, words, scales }
    }

    /// What the elements are stored as.
    pub fn element(&self) -> DenseElement {
        self.element
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The packed elements, a row after another.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The scale of every row; none but for [`DenseElement::Int8`].
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// One row as floats.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> Vec<f32> {
        let mut numbers = self.unscaled_row(row);
        if let Some(scale) = self.scales.get(row) {
            numbers.iter_mut().for_each(|v| *v *= scale);
        }
        numbers
    }

    /// One row as floats; codes without their scale. Panics if there is no such row.
    pub(crate) fn unscaled_row(&self, row: usize) -> Vec<f32> {
        let stride = self.element.row_words(self.columns);
        let words = &self.words[row * stride..][..stride];
        match self.element {
            DenseElement::F32 => bytemuck::cast_slice::<_, f32>(words)[..self.columns].to_vec(),
            DenseElement::F16 => bytemuck::cast_slice::<_, f16>(words)[..self.columns]
                .iter()
                .map(|v| v.to_f32())
                .collect(),
            DenseElement::Bf16 => {
                let bits = &bytemuck::cast_slice::<_, u16>(words)[..self.columns];
                bits.iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect()
            }
            DenseElement::Int8 => {
                let codes = &bytemuck::cast_slice::<_, i8>(words)[..self.columns];
                codes.iter().map(|&code| f32::from(code)).collect()
            }
        }
    }
}

impl PackedDense {
    /// Copies it to the GPU.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the device cannot bind that much.
    pub fn upload(&self, context: &Context) -> Result<DenseMatrix> {
        let stride = self.element.row_words(self.columns);
        let ones;
        let scales = if self.element == DenseElement::Int8 {
            &self.scales
        } else {
            ones = vec![1.0; self.rows];
            &ones
        };
        Ok(DenseMatrix {
            element: self.element,
            rows: self.rows,
            columns: self.columns,
            words: context.upload(&self.words, [self.rows, stride])?,
            scales: context.upload(scales, [self.rows])?,
        })
    }
}

/// A dense matrix on the GPU. Clones share its buffers.
#[derive(Clone, Debug)]
pub struct DenseMatrix {
    element: DenseElement,
    rows: usize,
    columns: usize,
    pub(crate) words: Tensor<u32>,
    /// One a row; 1 where elements are floats.
    pub(crate) scales: Tensor<f32>,
}

impl DenseMatrix {
    /// A matrix of `columns` columns of floats, whose rows are padded with zeros to whole groups of
    /// sixteen bytes. It shares their buffer; `scales` are ones, `[rows]`.
    #[cfg(feature = "models")]
    pub(crate) fn of_floats(numbers: &Tensor<f32>, columns: usize, scales: &Tensor<f32>) -> Self {
        let (rows, words) = (numbers.shape().as_matrix().0, numbers.cast());
        Self { element: DenseElement::F32, rows, columns, words, scales: scales.clone() }
    }

    /// What the elements are stored as.
    pub fn element(&self) -> DenseElement {
        self.element
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Groups of sixteen bytes in a row.
    pub(crate) fn blocks(&self) -> usize {
        self.element.row_words(self.columns) / 4
    }

    /// Columns of a row with what pads it.
    pub(crate) fn padded(&self) -> usize {
        self.blocks() * 16 / self.element.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_with_a_nan_has_no_scale() {
        let rows = [1.0, -2.0, f32::NAN, 0.0, 0.0, 0.0, f32::INFINITY, 1.0, 0.0];
        let matrix = PackedDense::from_f32(3, 3, &rows).unwrap().quantize();
        assert!(matrix.scales[0].is_nan());
        assert_eq!((matrix.scales[1], matrix.scales[2]), (0.0, f32::INFINITY));
        assert_eq!(matrix.not_finite(), Some((0, 0)));
    }

    #[test]
    fn numbers_that_are_not_finite_are_found() {
        // Of several chunks, with rows that are padded.
        let (rows, columns) = (67, 1001);
        for (element, ones, largest) in [
            (DenseElement::F32, 0x7f80_0000u32, 0x7f7f_ffff),
            (DenseElement::Bf16, 0x7f80, 0xff7f),
            (DenseElement::F16, 0xfc01, 0x7bff),
        ] {
            let size = element.bytes();
            let finite = u32::to_le_bytes(largest)[..size].repeat(rows * columns);
            let found = |at: &[usize]| {
                let mut bytes = finite.clone();
                at.iter().for_each(|at| {
                    bytes[at * size..][..size].copy_from_slice(&ones.to_le_bytes()[..size])
                });
                PackedDense::from_bytes(element, rows, columns, &bytes).unwrap().not_finite()
            };
            assert_eq!(found(&[]), None);
            for at in (0..rows * columns).step_by(997).chain([1, rows * columns - 1]) {
                assert_eq!(found(&[rows * columns - 1, at]), Some((at / columns, at % columns)));
            }
        }
    }
}
