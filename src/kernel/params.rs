//! A kernel's parameters: small structs that travel as immediates.

use std::fmt;

/// The type of one field of [`Params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// `u32`, `uint`
    U32,
    /// `i32`, `int`
    I32,
    /// `f32`, `float`
    F32,
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
        })
    }
}

/// The host types that a field of [`Params`] may have: what [`params!`](crate::params) expands to.
#[doc(hidden)]
pub trait ScalarType: Copy {
    /// The type in shaders.
    const SCALAR: Scalar;
    /// Returns its 32 bits.
    fn word(self) -> u32;
}
impl ScalarType for u32 {
    const SCALAR: Scalar = Scalar::U32;
    fn word(self) -> u32 {
        self
    }
}
impl ScalarType for i32 {
    const SCALAR: Scalar = Scalar::I32;
    fn word(self) -> u32 {
        self.cast_unsigned()
    }
}
impl ScalarType for f32 {
    const SCALAR: Scalar = Scalar::F32;
    fn word(self) -> u32 {
        self.to_bits()
    }
}

/// Name and type of every field of a `Params` struct, in order.
pub type Fields = &'static [(&'static str, Scalar)];

/// Lists fields as a struct does: `rows: u32, eps: f32`; "none" if there are none.
pub(crate) fn list(fields: Fields) -> String {
    if fields.is_empty() {
        return "none".into();
    }
    let field = |(name, scalar): &(&str, Scalar)| format!("{name}: {scalar}");
    fields.iter().map(field).collect::<Vec<_>>().join(", ")
}

/// The parameters of a kernel, `Params` in its source. [`params!`](crate::params) declares a struct
/// that implements it; `()` is for a kernel without parameters.
pub trait Params {
    /// Names and types of the fields, in order.
    const FIELDS: Fields;
    /// Returns the values of the fields, in order.
    #[doc(hidden)]
    fn words(&self) -> Vec<u32>;
}

impl Params for () {
    const FIELDS: Fields = &[];
    fn words(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Declares a struct of `u32`, `i32` and `f32` fields that implements
/// [`Params`](crate::kernel::Params): the parameters of a kernel, at most 128 bytes.
///
/// ```
/// bitnet_wgpu::params! { struct Params { rows: u32, eps: f32 } }
/// use bitnet_wgpu::kernel::{Params as _, Scalar};
/// assert_eq!(Params::FIELDS, [("rows", Scalar::U32), ("eps", Scalar::F32)]);
/// ```
#[macro_export]
macro_rules! params {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($field_vis:vis $field:ident : $ty:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        $vis struct $name { $($field_vis $field: $ty),+ }
        impl $crate::kernel::Params for $name {
            const FIELDS: $crate::kernel::Fields =
                &[$((stringify!($field), <$ty as $crate::kernel::ScalarType>::SCALAR)),+];
            fn words(&self) -> ::std::vec::Vec<u32> {
                ::std::vec![$($crate::kernel::ScalarType::word(self.$field)),+]
            }
        }
    };
}
