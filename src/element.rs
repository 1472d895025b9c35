//! The types of a tensor's elements.

use std::fmt;

/// The element types a [`Tensor`](crate::Tensor) can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Element {
    /// 32-bit float.
    F32,
    /// 16-bit float ([`half::f16`]); kernels on it need the adapter's `SHADER_F16`.
    F16,
    /// 8-bit integer, four per word in shaders.
    I8,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit signed integer.
    I32,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::I8 => "i8",
            Self::U32 => "u32",
            Self::I32 => "i32",
        })
    }
}

mod sealed {
    /// The size of a binding follows from the element, so other crates cannot add types.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for i8 {}
    impl Sealed for u32 {}
    impl Sealed for i32 {}
}

/// A host type that is an [`Element`].
pub trait ElementType: sealed::Sealed + bytemuck::Pod + Send + Sync {
    /// Which one.
    const ELEMENT: Element;
}
impl ElementType for f32 {
    const ELEMENT: Element = Element::F32;
}
impl ElementType for half::f16 {
    const ELEMENT: Element = Element::F16;
}
impl ElementType for i8 {
    const ELEMENT: Element = Element::I8;
}
impl ElementType for u32 {
    const ELEMENT: Element = Element::U32;
}
impl ElementType for i32 {
    const ELEMENT: Element = Element::I32;
}

/// The float types that activations and outputs may have: `f32` and [`half::f16`].
pub trait Float: ElementType + Into<f32> {
    /// The nearest value of this type, ties to even.
    fn from_f32(value: f32) -> Self;
}
impl Float for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }
}
impl Float for half::f16 {
    fn from_f32(value: f32) -> Self {
        half::f16::from_f32(value)
    }
}
