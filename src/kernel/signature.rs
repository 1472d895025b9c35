//! What a kernel's source or binary declares, as read from it.

use super::{binding::Access, declaration::Grid, params::Scalar};
use std::fmt;

/// A kernel's declaration must be the same.
#[derive(Debug, PartialEq)]
pub struct Signature {
    pub workgroup_size: [u32; 3],
    pub params: Vec<(String, Scalar)>,
    /// Slot, name, type, access, in slot order.
    pub bindings: Vec<(u32, String, Word, Access)>,
    /// Whether it takes its index from `flat_group`, so that its grid may be folded.
    pub grid: Grid,
    pub workgroup_bytes: u32,
}

/// What a binding's elements are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    U32,
    I32,
    F32,
    F16,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::F16 => "f16",
        })
    }
}
