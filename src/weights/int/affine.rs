//! What codes stand for.

use crate::{
    error::{Error, Result},
    weights::ternary::scales::{groups, is_sound},
};

/// Columns that any width of code fills whole words with; group sizes are multiples of it.
pub const GROUP_STEP: usize = 32;

/// The largest zero point: beyond it, code - zero would lose bits of the code.
const MAX_ZERO: f32 = 65_536.0;

/// What codes stand for: weight = scale·(code - zero), with a scale and a zero point for each row,
/// or for each group of neighboring columns of a row (the affine quantization of Jacob et al.
/// 2018, arXiv:1712.05877; zero points need not be whole).
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    /// Columns of a group, a multiple of 32; the last group of a row may be short. `None`: a row is
    /// one group.
    pub group: Option<usize>,
    /// `[rows, groups]`, row-major; 0, or of a magnitude from 2^-80 to 2^80.
    pub scales: Vec<f32>,
    /// `[rows, groups]`, row-major; 0, or of a magnitude from 2^-80 to 2^16.
    pub zeros: Vec<f32>,
}

impl Affine {
    pub(super) fn check(&self, rows: usize, columns: usize) -> Result<()> {
        check_group(self.group)?;
        let expected = rows.saturating_mul(groups(columns, self.group));
        for (what, found) in [("scales", self.scales.len()), ("zero points", self.zeros.len())] {
            if found != expected {
                return Err(invalid(format!("{found} {what}, {expected} are needed")));
            }
        }
        if let Some(scale) = self.scales.iter().find(|scale| !is_sound(**scale)) {
            return Err(invalid(format!(
                "scale {scale}; magnitudes from 2^-80 to 2^80, and 0, are supported"
            )));
        }
        match self.zeros.iter().find(|zero| !is_sound(**zero) || zero.abs() > MAX_ZERO) {
            Some(zero) => Err(invalid(format!(
                "zero point {zero}; magnitudes from 2^-80 to 2^16, and 0, are supported"
            ))),
            None => Ok(()),
        }
    }
}

/// Checks that groups of this size are whole words, whatever the bits of a code.
pub fn check_group(group: Option<usize>) -> Result<()> {
    match group {
        Some(size) if size == 0 || !size.is_multiple_of(GROUP_STEP) || size > u32::MAX as usize => {
            Err(invalid(format!(
                "groups of {size} columns; a multiple of {GROUP_STEP} below 2^32 is needed"
            )))
        }
        _ => Ok(()),
    }
}

pub fn invalid(what: String) -> Error {
    Error::Invalid { op: "integer matrix", what }
}
