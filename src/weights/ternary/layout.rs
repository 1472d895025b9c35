//! Ternary matrices: 2-bit codes packed for the kernels, and their scales.
//!
//! A code is value + 1, so 0, 1, 2 stand for -1, 0, +1; 3 does not occur. Sixteen codes make a
//! word: element `e` of a word lies at bit `8·(e mod 4) + 2·(e div 4)`. Masking a word with
//! `0x03030303 << 2f` gives elements `4f .. 4f + 4` as the bytes of an integer dot product; masking
//! it with `0x00030003 << 2f` gives elements `4f` and `4f + 2` as two half-precision numbers. A row
//! is padded with zeros (code 1) to whole groups of four words, so kernels may read 16 bytes at a
//! time and need no tail.

/// Elements in one word.
pub const CODES_PER_WORD: usize = 16;

/// Words in a row of `columns` elements.
pub const fn row_words(columns: usize) -> usize {
    columns.div_ceil(64) * 4
}

/// The bit at which element `e` of a word lies.
#[inline]
pub const fn bit(e: usize) -> usize {
    8 * (e % 4) + 2 * (e / 4)
}

/// A word of sixteen zeros.
pub const ZEROS: u32 = 0x5555_5555;

/// Packs codes that lie one a byte, at bit `shift` of each; what lies in the other bits does not
/// matter. Elements `4f .. 4f + 4` of a word are its bytes at bit `2f`, so sixteen bytes become a
/// word in four steps.
pub fn gather(words: &mut [u32], bytes: &[u8], shift: usize) {
    let pack = |bytes: &[u8; 16]| {
        let (quads, _) = bytes.as_chunks::<4>();
        (0..4).fold(0, |word, f| {
            word | (u32::from_le_bytes(quads[f]) >> shift & 0x0303_0303) << (2 * f)
        })
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

/// A word of the sixteen codes that another has in their order, element `e` at bit `2·e`: a
/// transpose.
#[cfg(feature = "formats")]
pub fn transpose(word: u32) -> u32 {
    // Spreads the four codes of a byte over the four bytes of a word.
    let spread =
        word.to_le_bytes().map(u32::from).map(|b| (b | b << 6 | b << 12 | b << 18) & 0x0303_0303);
    spread[0] | spread[1] << 2 | spread[2] << 4 | spread[3] << 6
}

/// A word of sixteen weights of -1 and +1, of which bits say whether they are +1, the first in the
/// lowest bit.
#[cfg(feature = "formats")]
pub fn from_signs(bits: u16) -> u32 {
    // Bit e goes to bit 2·e + 1, where it is code 0 or 2.
    let spread = [(8, 0x00ff_00ff), (4, 0x0f0f_0f0f), (2, 0x3333_3333), (1, 0x5555_5555)];
    transpose(
        spread
            .into_iter()
            .fold(u32::from(bits), |word, (shift, mask)| (word | word << shift) & mask)
            << 1,
    )
}

/// The inverse of [`gather`]: sets bit `shift` and the next of every byte, which were zero.
pub fn scatter(words: &[u32], bytes: &mut [u8], shift: usize) {
    let spread =
        |word: u32| std::array::from_fn::<_, 4, _>(|f| (word >> (2 * f) & 0x0303_0303) << shift);
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
pub fn code_3(bytes: &[u8]) -> Option<usize> {
    use rayon::prelude::*;
    const CHUNK: usize = 1 << 16;
    let bad = |byte: u8| byte & byte >> 1 & 0x55;
    // Without leaving early, so that the compiler looks at many bytes at once.
    let chunk = bytes
        .par_chunks(CHUNK)
        .position_first(|chunk| chunk.iter().fold(0, |all, &byte| all | bad(byte)) != 0)?;
    let start = chunk * CHUNK;
    bytes[start..].iter().position(|&byte| bad(byte) != 0).map(|at| start + at)
}
