//! Matrices of unsigned codes of 1, 2, 4 or 8 bits, with a scale and a zero point for groups of
//! columns.

pub(crate) mod affine;
pub(crate) mod bits;
pub(crate) mod matrix;
pub(crate) mod packed;
