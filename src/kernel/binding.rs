//! A kernel's storage buffers.

use crate::visibility::internal_fields;

/// How a kernel uses a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// `var<storage, read>`, `device const T*`.
    Read,
    /// `var<storage, read_write>`, `device T*`.
    ReadWrite,
}

/// The element type of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Type {
    /// Unsigned words, or anything packed in them (tensors of `i8`, four per word, among them).
    U32,
    /// Signed words.
    I32,
    /// 32-bit floats.
    F32,
    /// 16-bit floats, in all variants.
    F16,
    /// `f32` or `f16`, as the bound tensor has it. The shader uses this alias (`X`, say; in MSL
    /// `X4` is the vector of four).
    Float(&'static str),
    /// Elements that are moved and not computed with: `u32` for tensors whose elements have 4
    /// bytes, `f16` for those of 2.
    Bits(&'static str),
}

internal_fields! {
    /// One storage buffer of a kernel: binding `i` in WGSL, `[[buffer(i + 1)]]` in MSL (`i` where there
    /// are no params).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub struct Binding {}
    internals {
        /// The variable's name in all languages.
        name: &'static str,
        /// Its element type.
        ty: Type,
        /// Whether the kernel writes it.
        access: Access,
    }
}

/// A binding that the kernel only reads.
pub const fn read(name: &'static str, ty: Type) -> Binding {
    Binding { name, ty, access: Access::Read }
}

/// A binding that the kernel writes, or reads and writes.
pub const fn read_write(name: &'static str, ty: Type) -> Binding {
    Binding { name, ty, access: Access::ReadWrite }
}
