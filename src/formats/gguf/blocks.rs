//! Decoders of GGUF's tensor types. Callers have checked the number of bytes against the type's
//! size.

use crate::{
    formats::format_error::{FormatError, with_share},
    weights::ternary::{
        layout::{ZEROS, code_3, from_signs, gather, transpose},
        packed::PackedTernary,
        scales::Scales,
    },
};
use half::f16;
use rayon::prelude::*;
use std::fmt;

/// A tensor's storage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufType {
    /// 32-bit floats.
    F32,
    /// f16 floats.
    F16,
    /// bfloat16: the upper half of a 32-bit float.
    Bf16,
    /// Blocks of 32 8-bit integers with a scale each.
    Q8_0,
    /// Blocks of 256 4-bit integers with two scales, and for every 32 of them a 6-bit scale and a
    /// 6-bit offset.
    Q4K,
    /// Blocks of 256 6-bit integers with a scale, and an 8-bit scale for every 16 of them.
    Q6K,
    /// Ternary: 2-bit codes, and one scale for the tensor.
    I2S,
    /// Ternary: blocks of 256 weights, five to a byte, with a scale each.
    Tq1_0,
    /// Ternary: blocks of 256 2-bit codes with a scale each.
    Tq2_0,
    /// 2-bit codes in blocks of 64 with a scale each; ternary where code 3 does not occur.
    Q2_0,
    /// [`GgufType::Q2_0`] in blocks of 128. (Older files give it the number of that type: they are
    /// told apart by the tensors' places.)
    Pq2_0,
    /// Ternary: blocks of 128 weights, five to a byte, with a scale each.
    Ptq1_0,
    /// Binary: blocks of 128 signs with a scale each.
    Q1_0,
    /// A type that this crate does not read, by its number in the format.
    Other(u32),
}

/// The name in llama.cpp.
impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q6K => "Q6_K",
            Self::I2S => "I2_S",
            Self::Tq1_0 => "TQ1_0",
            Self::Tq2_0 => "TQ2_0",
            Self::Q2_0 => "Q2_0",
            Self::Pq2_0 => "PQ2_0",
            Self::Ptq1_0 => "PTQ1_0",
            Self::Q1_0 => "Q1_0",
            Self::Other(id) => return write!(f, "type {id}"),
        })
    }
}

/// The numbers of types in the format.
const IDS: [(u32, GgufType); 13] = [
    (0, GgufType::F32),
    (1, GgufType::F16),
    (8, GgufType::Q8_0),
    (12, GgufType::Q4K),
    (14, GgufType::Q6K),
    (30, GgufType::Bf16),
    (34, GgufType::Tq1_0),
    (35, GgufType::Tq2_0),
    (36, GgufType::I2S),
    (41, GgufType::Q1_0),
    (42, GgufType::Q2_0),
    (142, GgufType::Pq2_0),
    (143, GgufType::Ptq1_0),
];

impl GgufType {
    pub(super) fn from_id(id: u32) -> Self {
        IDS.iter().find(|(known, _)| *known == id).map_or(Self::Other(id), |(_, kind)| *kind)
    }

    pub(super) fn id(self) -> u32 {
        match self {
            Self::Other(id) => id,
            _ => IDS.iter().find(|(_, kind)| *kind == self).map_or(u32::MAX, |(id, _)| *id),
        }
    }

    /// Elements and bytes of a block. A row is a whole number of blocks.
    pub(super) const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
            Self::Tq1_0 => (256, 54),
            Self::Tq2_0 => (256, 66),
            Self::Q2_0 => (64, 18),
            Self::Pq2_0 => (128, 34),
            Self::Ptq1_0 => (128, 28),
            Self::Q1_0 => (128, 18),
            Self::I2S | Self::Other(_) => (1, 0),
        }
    }

    /// A tensor's size in bytes; `None` for an unknown type.
    pub(super) fn bytes(self, elements: usize, columns: usize) -> Result<Option<usize>, String> {
        let (size, bytes) = self.block();
        match self {
            Self::Other(_) => Ok(None),
            // Four codes per byte, then 32 bytes that begin with the scale.
            Self::I2S => Ok(Some(elements.div_ceil(4).saturating_add(32))),
            _ if !columns.is_multiple_of(size) => {
                Err(format!("has rows of {columns} elements; {self} needs whole blocks of {size}"))
            }
            _ => Ok(Some((elements / size).saturating_mul(bytes))),
        }
    }
}

/// A ternary type whose blocks have their own scales.
struct Block {
    bytes: usize,
    columns: usize,
    /// Byte offset of the scale, an `f16`.
    scale: usize,
    /// Byte range of the 2-bit codes; empty for a type without them.
    codes: std::ops::Range<usize>,
    /// Whether code 3 is a number of the type, though not a ternary one.
    has_code_3: bool,
    /// Decodes a block into packed words of 16 codes.
    pack: fn(&[u8], &mut [u32]),
}

static TQ1_0: Block = Block {
    bytes: 54,
    columns: 256,
    scale: 52,
    codes: 0..0,
    has_code_3: false,
    pack: |block, words| pack_trits(block, TQ1_PARTS, words),
};
static PTQ1_0: Block = Block {
    bytes: 28,
    columns: 128,
    scale: 26,
    codes: 0..0,
    has_code_3: false,
    pack: |block, words| pack_trits(block, PTQ1_PARTS, words),
};
static TQ2_0: Block =
    Block { bytes: 66, columns: 256, scale: 64, codes: 0..64, has_code_3: false, pack: pack_tq2 };
static Q2_0: Block =
    Block { bytes: 18, columns: 64, scale: 0, codes: 2..18, has_code_3: true, pack: pack_q2 };
static PQ2_0: Block =
    Block { bytes: 34, columns: 128, scale: 0, codes: 2..34, has_code_3: true, pack: pack_q2 };
static Q1_0: Block =
    Block { bytes: 18, columns: 128, scale: 0, codes: 0..0, has_code_3: false, pack: pack_q1 };

/// The matrix of a ternary type; `None` for other types.
pub(super) fn ternary(
    kind: GgufType,
    layout: I2sLayout,
    rows: usize,
    columns: usize,
    bytes: &[u8],
) -> Option<Result<PackedTernary, FormatError>> {
    match kind {
        GgufType::I2S => Some(i2s(layout, rows, columns, bytes).map_err(FormatError::from)),
        GgufType::Tq1_0 => Some(TQ1_0.matrix(rows, columns, bytes)),
        GgufType::Tq2_0 => Some(TQ2_0.matrix(rows, columns, bytes)),
        GgufType::Q2_0 => Some(Q2_0.matrix(rows, columns, bytes)),
        GgufType::Pq2_0 => Some(PQ2_0.matrix(rows, columns, bytes)),
        GgufType::Ptq1_0 => Some(PTQ1_0.matrix(rows, columns, bytes)),
        GgufType::Q1_0 => Some(Q1_0.matrix(rows, columns, bytes)),
        _ => None,
    }
}

impl Block {
    fn matrix(
        &self,
        rows: usize,
        columns: usize,
        bytes: &[u8],
    ) -> Result<PackedTernary, FormatError> {
        // No early exit within a block, so that the compiler vectorizes the loop.
        let code_3 = |block: &[u8]| {
            block[self.codes.clone()].iter().fold(0, |all, byte| all | byte & byte >> 1 & 0x55) != 0
        };
        let blocks = bytes.par_chunks_exact(self.bytes).with_min_len(1 << 10);
        if let Some(block) = blocks.clone().position_first(code_3) {
            let threes = |byte: &u8| (byte & byte >> 1 & 0x55).count_ones() as usize;
            let count = blocks
                .map(|block| block[self.codes.clone()].iter().map(threes).sum::<usize>())
                .sum();
            let what = format!(
                "has code 3 (the value 2), first in the block at its byte {}: not ternary",
                block * self.bytes
            );
            return if self.has_code_3 {
                Err(with_share(what, count, rows * columns))
            } else {
                Err(what.into())
            };
        }
        let scales: Vec<f32> = blocks.map(|block| half(block, self.scale)).collect();
        let scales = Scales::of_groups(self.columns, columns / self.columns, scales);
        let row_bytes = columns / self.columns * self.bytes;
        let packed = PackedTernary::from_rows(rows, columns, scales, |row, words| {
            let blocks = bytes[row * row_bytes..][..row_bytes].chunks_exact(self.bytes);
            for (block, words) in blocks.zip(words.chunks_exact_mut(self.columns / 16)) {
                // With a scale of zero every weight is zero, whatever its code; zero codes keep it
                // so under a scale shared with other blocks.
                if half(block, self.scale) == 0.0 {
                    words.fill(ZEROS)
                } else {
                    (self.pack)(block, words)
                }
            }
        });
        packed.map_err(|e| e.to_string().into())
    }
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Element 128·g + 32·l + j is in byte 32·g + j at bit 2·l.
fn pack_tq2(block: &[u8], words: &mut [u32]) {
    for (run, words) in words.chunks_exact_mut(2).enumerate() {
        gather(words, &block[run / 4 * 32..][..32], run % 4 * 2);
    }
}

/// Element 4·b + l is in byte b at bit 2·l.
fn pack_q2(block: &[u8], words: &mut [u32]) {
    let (quads, _) = block[2..].as_chunks::<4>();
    words
        .iter_mut()
        .zip(quads)
        .for_each(|(word, quad)| *word = transpose(u32::from_le_bytes(*quad)));
}

/// Element 8·b + l is +1 where byte b has bit l, else -1.
fn pack_q1(block: &[u8], words: &mut [u32]) {
    let (pairs, _) = block[2..].as_chunks::<2>();
    words
        .iter_mut()
        .zip(pairs)
        .for_each(|(word, pair)| *word = from_signs(u16::from_le_bytes(*pair)));
}

/// A byte holds five base-3 digits v = 0..243 as ceil(256·v / 243), so byte / 256 is slightly above
/// v / 3^5: the digits after the point. Multiplying by 3^i modulo 256 drops the first i digits; the
/// upper byte of three times the result is digit i.
///
/// Of n bytes from the first element e on, digit i of byte j is element e + n·i + j. The last bytes
/// of a block hold four digits each.
fn trits(block: &[u8], parts: TritParts) -> [u8; 256] {
    let mut codes = [0u8; 256];
    for (start, end, first) in parts {
        let bytes = &block[start..end];
        let last = 256.min(first + 5 * bytes.len());
        for (codes, power) in
            codes[first..last].chunks_exact_mut(bytes.len()).zip([1u8, 3, 9, 27, 81])
        {
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
            }
        }
    }
    codes
}

/// Runs of bytes, each by its first byte, its end and its first element.
type TritParts = [(usize, usize, usize); 3];
const TQ1_PARTS: TritParts = [(0, 32, 0), (32, 48, 160), (48, 52, 240)];
const PTQ1_PARTS: TritParts = [(0, 16, 0), (16, 24, 80), (24, 26, 120)];

fn pack_trits(block: &[u8], parts: TritParts, words: &mut [u32]) {
    gather(words, &trits(block, parts)[..16 * words.len()], 0);
}

/// The order of codes in I2_S tensors. Converters have written three layouts under one type number,
/// and no metadata tells which. All hold the same codes, so a file decodes without an error in any
/// of them, unless a shape does not fit. A model read in the wrong layout writes gibberish from the
/// first token. [`open`](crate::formats::open) finds
/// the layout by the weights of a trained model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum I2sLayout {
    /// Blocks of 128 weights in 32 bytes; byte p holds weights p, 32 + p, 64 + p, 96 + p from its
    /// upper bits down. The published files have this layout, and bitnet.cpp writes it on x86-64.
    X86,
    /// Blocks of 64 weights in 16 bytes; byte p holds weights p, 16 + p, 32 + p, 48 + p. Older
    /// bitnet.cpp wrote it on ARM.
    Arm,
    /// A byte holds one column of four neighboring rows, the first in its upper bits. Newer
    /// bitnet.cpp writes it for its row-wise kernels.
    Rows,
}

/// The name of the layout on the command line.
impl fmt::Display for I2sLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::X86 => "x86",
            Self::Arm => "arm",
            Self::Rows => "rows",
        })
    }
}

impl I2sLayout {
    /// Elements of a block, and the distance in elements between the codes of one byte.
    pub(super) const fn block(self) -> (usize, usize) {
        match self {
            Self::X86 => (128, 32),
            Self::Arm => (64, 16),
            Self::Rows => (1, 1),
        }
    }
}

fn i2s(
    layout: I2sLayout,
    rows: usize,
    columns: usize,
    bytes: &[u8],
) -> Result<PackedTernary, String> {
    let (size, run) = layout.block();
    let elements = rows * columns;
    let fits = if layout == I2sLayout::Rows {
        rows.is_multiple_of(4)
    } else {
        elements.is_multiple_of(size)
    };
    if !fits {
        let needed = match layout {
            I2sLayout::Rows => "a multiple of 4 rows".to_owned(),
            _ => format!("a multiple of {size} weights"),
        };
        return Err(format!(
            "has shape [{rows}, {columns}]; the {layout} layout of I2_S needs {needed}. Choose another with ReadOptions::i2s_layout"
        ));
    }
    let (codes, rest) = bytes.split_at(elements / 4);
    let scale = rest.first_chunk().map_or(f32::NAN, |scale| f32::from_le_bytes(*scale));
    if !(scale >= 0.0 && scale.is_finite()) {
        return Err(format!(
            "has the scale {scale} at its byte {}: a damaged file, or not I2_S as converters write it",
            elements / 4
        ));
    }
    check_codes(codes)?;
    let scales = Scales::Tensor(scale);
    let packed = if layout == I2sLayout::Rows {
        PackedTernary::from_rows(rows, columns, scales, |row, words| {
            gather(words, &codes[row / 4 * columns..][..columns], 6 - row % 4 * 2)
        })
    } else if columns.is_multiple_of(size) {
        PackedTernary::from_rows(rows, columns, scales, |row, words| {
            let blocks = codes[row * columns / 4..][..columns / 4].chunks_exact(size / 4);
            for (block, words) in blocks.zip(words.chunks_exact_mut(size / 16)) {
                for (i, words) in words.chunks_exact_mut(run / 16).enumerate() {
                    gather(words, block, 6 - i * 2);
                }
            }
        })
    } else {
        // Blocks straddle the ends of rows.
        PackedTernary::from_codes(rows, columns, scales, |row, column| {
            let (block, element) =
                ((row * columns + column) / size, (row * columns + column) % size);
            u32::from(codes[block * size / 4 + element % run] >> (6 - element / run * 2) & 3)
        })
    };
    packed.map_err(|e| e.to_string())
}

/// Refuses code 3 and implausible counts of codes. The layouts only permute codes, so this works
/// for all of them.
fn check_codes(codes: &[u8]) -> Result<(), String> {
    if let Some(at) = code_3(codes) {
        return Err(format!(
            "has code 3 at its byte {at}, which no I2_S layout has: the file is damaged, or uses the type's number for another type"
        ));
    }
    let count = |mask: u64| {
        let (words, rest) = codes.as_chunks::<8>();
        let words = words
            .par_iter()
            .with_min_len(1 << 13)
            .map(|word| (u64::from_le_bytes(*word) & mask).count_ones() as usize);
        words.sum::<usize>()
            + rest.iter().map(|&byte| (u64::from(byte) & mask).count_ones() as usize).sum::<usize>()
    };
    let (zeros, plus) = (count(0x5555_5555_5555_5555), count(0xaaaa_aaaa_aaaa_aaaa));
    let minus = codes.len() * 4 - zeros - plus;
    // Trained weights have about as many +1 as -1. A hole of zero bytes, as in an interrupted
    // download, reads as -1.
    if codes.len() >= 1024 && plus.max(minus) > 9 * plus.min(minus) + codes.len() / 4 {
        return Err(format!(
            "has {minus} weights of -1, {zeros} of 0 and {plus} of +1: the file is incomplete, or uses the type's number for another type"
        ));
    }
    Ok(())
}

/// Decodes the float types; `None` for other types.
pub(super) fn floats(kind: GgufType, bytes: &[u8]) -> Option<Vec<f32>> {
    let pairs = || bytes.par_chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match kind {
        GgufType::F32 => Some(
            bytes
                .par_chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
        ),
        GgufType::F16 => Some(pairs().map(|bits| f16::from_bits(bits).to_f32()).collect()),
        GgufType::Bf16 => Some(pairs().map(|bits| half::bf16::from_bits(bits).to_f32()).collect()),
        _ => None,
    }
}

/// Decodes the quantized types of embeddings and heads to little-endian `f16`; `None` for other
/// types.
///
/// # Errors
/// A message, if a weight is not a finite `f16`.
pub(super) fn f16s(kind: GgufType, bytes: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let decode: fn(&[u8], &mut [f32]) = match kind {
        GgufType::Q8_0 => decode_q8,
        GgufType::Q4K => decode_q4,
        GgufType::Q6K => decode_q6,
        GgufType::Q2_0 | GgufType::Pq2_0 => decode_q2,
        GgufType::Ptq1_0 => decode_ptq1,
        GgufType::Q1_0 => decode_q1,
        _ => return None,
    };
    let (size, stride) = kind.block();
    let mut out = vec![0u8; bytes.len() / stride * size * 2];
    let finite = bytes.par_chunks_exact(stride).zip(out.par_chunks_exact_mut(2 * size)).map(
        |(block, out)| {
            let mut floats = [0f32; 256];
            decode(block, &mut floats[..size]);
            let (pairs, _) = out.as_chunks_mut::<2>();
            pairs.iter_mut().zip(&floats).fold(true, |finite, (pair, &float)| {
                let half = f16::from_f32(float);
                *pair = half.to_le_bytes();
                finite && half.is_finite()
            })
        },
    );
    let all = finite.reduce(|| true, |a, b| a && b);
    Some(if all {
        Ok(out)
    } else {
        Err("has weights that are not finite half-precision numbers".into())
    })
}

/// A block is an `f16` scale, then 32 signed bytes.
fn decode_q8(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (out, &byte) in out.iter_mut().zip(&block[2..]) {
        *out = scale * f32::from(byte as i8);
    }
}

/// Code 3, which no ternary matrix has, is twice the scale.
fn decode_q2(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (e, out) in out.iter_mut().enumerate() {
        *out = scale * (f32::from(block[2 + e / 4] >> (2 * (e % 4)) & 3) - 1.0);
    }
}

fn decode_ptq1(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 26);
    for (out, code) in out.iter_mut().zip(trits(block, PTQ1_PARTS)) {
        *out = scale * (f32::from(code) - 1.0);
    }
}

fn decode_q1(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (e, out) in out.iter_mut().enumerate() {
        *out = if block[2 + e / 8] >> (e % 8) & 1 == 1 { scale } else { -scale };
    }
}

/// Two `f16`, of the scales and of the offsets; 12 bytes of both; 128 bytes of codes. The codes of
/// 64 elements are in 32 bytes, the first 32 elements in the low nibbles. A weight is scale · scale
/// of its 32 · code - scale of offsets · offset of its 32.
fn decode_q4(block: &[u8], out: &mut [f32]) {
    let (scale, offset, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    for (run, out) in out.chunks_exact_mut(32).enumerate() {
        // The first four of either have a byte's low six bits; of the others, the low bits are in
        // nibbles, the high ones where six bits left two.
        let (s, m) = match run {
            0..4 => (packed[run] & 63, packed[run + 4] & 63),
            _ => (
                packed[run + 4] & 15 | packed[run - 4] >> 6 << 4,
                packed[run + 4] >> 4 | packed[run] >> 6 << 4,
            ),
        };
        let (s, m) = (scale * f32::from(s), offset * f32::from(m));
        for (out, &byte) in out.iter_mut().zip(&block[16 + run / 2 * 32..]) {
            *out = s * f32::from(byte >> (run % 2 * 4) & 15) - m;
        }
    }
}

/// 128 bytes of low four bits, 64 bytes of high two bits, 16 signed scales, an `f16` scale. In
/// quarter q of 128 elements, element j has its low bits in byte 32·(q mod 2) + j, the low nibble
/// for q < 2, and its high bits in byte j at bit 2·q. A weight is scale · scale of its 16 · (bits -
/// 32).
fn decode_q6(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 208);
    for (e, out) in out.iter_mut().enumerate() {
        let (n, q, j) = (e / 128, e % 128 / 32, e % 32);
        let low = block[64 * n + 32 * (q % 2) + j] >> (4 * (q / 2)) & 15;
        let high = block[128 + 32 * n + j] >> (2 * q) & 3;
        let code = i32::from(low | high << 4) - 32;
        *out = scale * f32::from(block[192 + e / 16] as i8) * code as f32;
    }
}
