//! What ternary codes are multiplied by.

use super::layout::CODES_PER_WORD;
use crate::error::{Error, Result};

/// What the integer codes are multiplied by.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scales {
    /// One for the whole matrix: BitNet b1.58's β = max(mean|W|, 1e-5).
    Tensor(f32),
    /// One for each run of rows, as (rows, scale): matrices of one tensor scale each, fused along
    /// their rows (q, k and v, say).
    Segments(Vec<(usize, f32)>),
    /// One for every `size` neighboring columns of a row, row by row; `size` is a multiple of 16,
    /// the last group may be short.
    Groups {
        /// Columns of a group.
        size: usize,
        /// `[rows, ceil(columns / size)]`, row-major.
        scales: Vec<f32>,
    },
}

impl Scales {
    /// Row-major `[rows, groups]`: what kernels index.
    pub(super) fn expand(&self, rows: usize) -> Vec<f32> {
        match self {
            Self::Tensor(scale) => vec![*scale; rows],
            Self::Segments(segments) => segments
                .iter()
                .flat_map(|&(rows, scale)| std::iter::repeat_n(scale, rows))
                .collect(),
            Self::Groups { scales, .. } => scales.clone(),
        }
    }

    /// Those of groups of `size` columns, `in_row` of them a row: of fewer groups where neighbors
    /// have the same, of rows where all of a row do. So the same numbers are computed in the same
    /// way, whatever groups a file has them in. A group whose scale is 0 must hold zeros only: it
    /// takes any scale.
    #[cfg(feature = "formats")]
    pub(crate) fn of_groups(mut size: usize, mut in_row: usize, mut scales: Vec<f32>) -> Self {
        if let Some(rows) = merged(&scales, in_row) {
            return Self::of_rows(rows);
        }
        while size < USUAL_GROUP
            && in_row.is_multiple_of(2)
            && let Some(pairs) = merged(&scales, 2)
        {
            (size, in_row, scales) = (2 * size, in_row / 2, pairs);
        }
        Self::Groups { size, scales }
    }

    /// One a row. A row whose scale is 0 holds zeros only, and gets that of its neighbor, so that
    /// rows of one scale stay together.
    #[cfg(feature = "formats")]
    pub(crate) fn of_rows(mut scales: Vec<f32>) -> Self {
        let mut last = scales.iter().copied().find(|&scale| scale != 0.0).unwrap_or(1.0);
        for scale in &mut scales {
            if *scale == 0.0 {
                *scale = last;
            }
            last = *scale;
        }
        Self::compress(None, scales)
    }

    /// The inverse of `expand`; runs of equal scales become segments.
    pub(crate) fn compress(group: Option<usize>, scales: Vec<f32>) -> Self {
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

/// Columns of the groups that most files have.
#[cfg(feature = "formats")]
pub(crate) const USUAL_GROUP: usize = 128;

/// One scale for every `count` neighbors, where those of them that are not 0 are the same.
#[cfg(feature = "formats")]
fn merged(scales: &[f32], count: usize) -> Option<Vec<f32>> {
    let one = |scales: &[f32]| {
        let first = scales.iter().copied().find(|&scale| scale != 0.0).unwrap_or(0.0);
        scales.iter().all(|&scale| scale == first || scale == 0.0).then_some(first)
    };
    scales.chunks(count.max(1)).map(one).collect()
}

/// Scales in a row.
pub fn groups(columns: usize, group: Option<usize>) -> usize {
    group.map_or(1, |size| columns.div_ceil(size))
}

/// The smallest scale but 0, 2^-80.
pub const SMALLEST_SCALE: f32 = f32::from_bits((127 - 80) << 23);

/// Returns whether it is 0, or of a magnitude from 2^-80 to 2^80, so that no product or quotient of
/// scales leaves the normal floats, where devices differ.
pub fn is_sound(scale: f32) -> bool {
    scale == 0.0 || (-80..=80).contains(&(i32::from((scale.to_bits() >> 23) as u8) - 127))
}

/// Checks that groups of this size are whole words.
pub fn check_group(group: Option<usize>) -> Result<()> {
    match group {
        Some(size)
            if size == 0 || !size.is_multiple_of(CODES_PER_WORD) || size > u32::MAX as usize =>
        {
            Err(invalid(format!("groups of {size} columns; a multiple of 16 below 2^32 is needed")))
        }
        _ => Ok(()),
    }
}

pub fn check_scales(rows: usize, columns: usize, scales: &Scales) -> Result<()> {
    if rows > u32::MAX as usize || columns > u32::MAX as usize {
        return Err(invalid(format!("{rows} × {columns}; kernels count in 32 bits")));
    }
    let (expected, found) = match scales {
        Scales::Tensor(_) => (1, 1),
        Scales::Segments(segments) => {
            (rows, segments.iter().fold(0usize, |sum, s| sum.saturating_add(s.0)))
        }
        Scales::Groups { size, scales } => {
            check_group(Some(*size))?;
            (rows.saturating_mul(groups(columns, Some(*size))), scales.len())
        }
    };
    if expected != found {
        return Err(invalid(format!("scales for {found} rows or groups, {expected} are needed")));
    }
    let broken = match scales {
        Scales::Tensor(scale) => Some(scale).filter(|scale| !is_sound(**scale)),
        Scales::Segments(segments) => {
            segments.iter().map(|segment| &segment.1).find(|scale| !is_sound(**scale))
        }
        Scales::Groups { scales, .. } => scales.iter().find(|scale| !is_sound(**scale)),
    };
    broken.map_or(Ok(()), |scale| {
        Err(invalid(format!("scale {scale}; magnitudes from 2^-80 to 2^80, and 0, are supported")))
    })
}

pub fn invalid(what: String) -> Error {
    Error::Invalid { op: "ternary matrix", what }
}
