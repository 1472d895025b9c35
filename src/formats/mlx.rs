//! Matrices as MLX quantizes them: integers of a few bits in words of 32, the first in the lowest
//! bits, with a scale and a bias for every group of neighboring columns. A weight is scale ·
//! integer + bias.

use super::{
    format_error::{FormatError, unsupported, with_share},
    safetensors::TensorBytes,
};
use crate::{
    error::Result,
    weights::{
        dense::{DenseElement, PackedDense},
        ternary::{
            layout::{CODES_PER_WORD, ZEROS, from_signs, transpose},
            packed::PackedTernary,
            scales::Scales,
        },
    },
};
use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::Value;
use std::collections::BTreeMap;

/// The key `quantization` of a config.json.
#[derive(Debug)]
pub(super) struct Settings {
    all: Affine,
    /// Of matrices that have settings of their own.
    own: BTreeMap<String, Affine>,
}

/// How a matrix is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    /// 1, 2, 4 or 8.
    bits: usize,
    /// Columns of a group.
    group: usize,
}

/// A matrix's tensors.
pub(super) struct AffineMatrix<'a> {
    /// `[rows, columns · bits / 32]`
    pub weight: &'a TensorBytes<'a>,
    /// `[rows, columns / group]`
    pub scales: &'a TensorBytes<'a>,
    /// As `scales`.
    pub biases: &'a TensorBytes<'a>,
}

impl Settings {
    /// None where there is no such key: a model that was not written by MLX.
    ///
    /// # Errors
    /// A message, for what is not affine, or of other bits or groups.
    pub fn from_json(json: &Value) -> Result<Option<Self>, FormatError> {
        let quantization = &json["quantization"];
        if quantization.is_null() {
            return Ok(None);
        }
        let keys = quantization
            .as_object()
            .ok_or_else(|| format!("quantization is {quantization}; an object is needed"))?;
        let own = keys.iter().filter(|(_, own)| own.is_object());
        let own = own.map(|(name, own)| {
            Ok((name.clone(), Affine::from_json(own, &format!("quantization of `{name}`: "))?))
        });
        Ok(Some(Self {
            all: Affine::from_json(quantization, "quantization.")?,
            own: own.collect::<Result<_, FormatError>>()?,
        }))
    }

    /// Those of a matrix, by the name of its weight.
    pub fn of(&self, weight: &str) -> Affine {
        weight
            .strip_suffix(".weight")
            .and_then(|name| self.own.get(name))
            .copied()
            .unwrap_or(self.all)
    }
}

impl Affine {
    fn from_json(json: &Value, what: &str) -> Result<Self, FormatError> {
        let mode = &json["mode"];
        if !mode.is_null() && mode != "affine" {
            return unsupported(format!("{what}mode {mode} is not supported; \"affine\" is"));
        }
        let one = |key: &str, known: &[u64]| match json[key]
            .as_u64()
            .filter(|number| known.contains(number))
        {
            Some(number) => Ok(number as usize),
            None => unsupported(format!(
                "{what}{key} {} is not supported; one of {known:?} is needed",
                json[key]
            )),
        };
        Ok(Self { bits: one("bits", &[1, 2, 4, 8])?, group: one("group_size", &[32, 64, 128])? })
    }

    /// Columns of a row of this many words.
    pub fn columns(self, words: usize) -> usize {
        words.saturating_mul(32 / self.bits)
    }

    /// The scales and biases of a matrix, `[rows, columns / group]`.
    fn groups(
        self,
        matrix: &AffineMatrix<'_>,
        rows: usize,
        columns: usize,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        if !columns.is_multiple_of(self.group) {
            return Err(matrix.weight.error(format!(
                "has rows of {columns} weights, not whole groups of {}",
                self.group
            )));
        }
        for tensor in [matrix.scales, matrix.biases] {
            if tensor.matrix()? != (rows, columns / self.group) {
                let expected = [rows, columns / self.group];
                return Err(
                    tensor.error(format!("has shape {:?}; {expected:?} is needed", tensor.shape))
                );
            }
        }
        Ok((matrix.scales.to_f32()?, matrix.biases.to_f32()?))
    }

    /// A matrix whose weights are ternary: of two bits, where biases are the scales' negatives and
    /// no integer is 3; of one bit, where a bias is half the scale's negative. `[rows, columns]`
    /// has been checked against the words.
    pub fn ternary(
        self,
        matrix: &AffineMatrix<'_>,
        rows: usize,
        columns: usize,
    ) -> Result<PackedTernary> {
        let weight = matrix.weight;
        if self.bits > 2 {
            return Err(weight.unsupported(format!(
                "is in integers of {} bits, which are not ternary: linear layers of 1 and 2 bits are supported",
                self.bits
            )));
        }
        let scales = self.ternary_scales(matrix, rows, columns)?;
        let (words, _) = weight.bytes.as_chunks::<4>();
        let threes = |word: &[u8; 4]| {
            u32::from_le_bytes(*word) & u32::from_le_bytes(*word) >> 1 & 0x5555_5555
        };
        if let Some(at) =
            (self.bits == 2).then(|| words.iter().position(|word| threes(word) != 0)).flatten()
        {
            let count = words.iter().map(|word| threes(word).count_ones() as usize).sum();
            let what = format!("has the integer 3 (the value 2), first in word {at}: not ternary");
            return Err(weight.problem(with_share(what, count, rows * columns)));
        }
        let stride = columns / 32 * self.bits;
        let in_row = columns / self.group;
        let shared = Scales::of_groups(self.group, in_row, scales.clone());
        let packed = PackedTernary::from_rows(rows, columns, shared, |row, packed| {
            let words =
                words[row * stride..][..stride].iter().map(|word| u32::from_le_bytes(*word));
            match self.bits {
                2 => packed
                    .iter_mut()
                    .zip(words)
                    .for_each(|(packed, word)| *packed = transpose(word)),
                _ => {
                    let f16s = words.flat_map(|word| [word as u16, (word >> 16) as u16]);
                    packed
                        .iter_mut()
                        .zip(f16s)
                        .for_each(|(packed, half)| *packed = from_signs(half));
                }
            }
            // With a scale of zero every weight is zero, whatever its integer; zeros keep it so
            // under a scale shared with other groups.
            let groups =
                packed.chunks_mut(self.group / CODES_PER_WORD).zip(&scales[row * in_row..]);
            groups.filter(|(_, scale)| **scale == 0.0).for_each(|(codes, _)| codes.fill(ZEROS));
        });
        packed.map_err(|e| weight.error(e))
    }

    /// The scales of a ternary matrix, with biases that make it one.
    fn ternary_scales(
        self,
        matrix: &AffineMatrix<'_>,
        rows: usize,
        columns: usize,
    ) -> Result<Vec<f32>> {
        let (scales, biases) = self.groups(matrix, rows, columns)?;
        let fits = |(scale, bias): (&f32, &f32)| {
            if self.bits == 2 { *bias == -scale } else { *bias * 2.0 == -scale }
        };
        if let Some(at) = scales.iter().zip(&biases).position(|pair| !fits(pair)) {
            let (groups, scale, bias) = (columns / self.group, scales[at], biases[at]);
            let (row, first) = (at / groups, at % groups * self.group);
            let expected = if self.bits == 2 { "-scale" } else { "-scale / 2" };
            return Err(matrix.weight.unsupported(format!(
                "has the scale {scale} and the bias {bias} in row {row} from column {first} on: it is ternary where biases are {expected}"
            )));
        }
        let negated = || biases.iter().map(|bias| -bias).collect();
        Ok(if self.bits == 2 { scales } else { negated() })
    }

    /// A matrix with whatever scales and biases, in the type that these have.
    pub fn dense(
        self,
        matrix: &AffineMatrix<'_>,
        rows: usize,
        columns: usize,
    ) -> Result<PackedDense> {
        let (scales, biases) = self.groups(matrix, rows, columns)?;
        let in_word = 32 / self.bits;
        let (words, _) = matrix.weight.bytes.as_chunks::<4>();
        let weights = (0..rows * columns).map(|i| {
            let word = u32::from_le_bytes(words[i / in_word]);
            let integer = word >> (i % in_word * self.bits) & ((1 << self.bits) - 1);
            scales[i / self.group] * integer as f32 + biases[i / self.group]
        });
        let (element, bytes): (_, Vec<u8>) = match matrix.scales.dtype {
            Dtype::F16 => {
                (DenseElement::F16, weights.flat_map(|w| f16::from_f32(w).to_le_bytes()).collect())
            }
            Dtype::BF16 => (
                DenseElement::Bf16,
                weights.flat_map(|w| bf16::from_f32(w).to_le_bytes()).collect(),
            ),
            _ => (DenseElement::F32, weights.flat_map(f32::to_le_bytes).collect()),
        };
        PackedDense::from_bytes(element, rows, columns, &bytes).map_err(|e| matrix.weight.error(e))
    }
}
