//! Comparisons: 1 where they hold, else 0, in words. A comparison with NaN does not hold, but for
//! [`not_equal`].

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        source::Part,
    },
    ops::frames::{ALIKE, broadcast_shape, combine, elementwise, function, two_inputs_of},
};

const BINDINGS: &[Binding; 3] =
    &[read("a", Float("X")), read("b", Float("X")), read_write("y", U32)];
const WORDS: Part = Part::new("alias Y", "alias Y = u32;\n");

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident, $into:ident, $cpu:ident $expression:literal |$a:ident, $b:ident| $twin:expr;)+) => {
        pub(super) const KERNELS: &[&Kernel] = &[$(&$name::KERNEL),+];
        $(
            mod $name {
                use super::*;
                const COMBINE: Part = function!("combine(a: f32, b: f32)", $expression);
                pub static KERNEL: Kernel = two_inputs_of(stringify!($name), BINDINGS, elementwise!("frames/elementwise_2", [WORDS, ALIKE, COMBINE]));
            }

            $(#[$doc])*
            /// `a` and `b` are broadcast as in [`add`](super::add).
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($into), "`].")]
            pub fn $name<T: Float>(encoder: &mut Encoder, a: &Tensor<T>, b: &Tensor<T>) -> Result<Tensor<u32>> {
                let y = Tensor::uninit(encoder.context(), broadcast_shape(stringify!($name), a.shape(), b.shape())?)?;
                $into(encoder, a, b, &y)?;
                Ok(y)
            }

            #[doc = concat!("[`", stringify!($name), "`] into a tensor of the caller, to whose shape `a` and `b` are broadcast.")]
            ///
            /// # Errors
            /// [`Error::Shape`](crate::Error::Shape) if they do not fit.
            pub fn $into<T: Float>(encoder: &mut Encoder, a: &Tensor<T>, b: &Tensor<T>, y: &Tensor<u32>) -> Result<()> {
                combine(encoder, &$name::KERNEL, a, b, y.into())
            }

            #[doc = concat!("The CPU twin of [`", stringify!($name), "`], of two numbers.")]
            pub fn $cpu($a: f32, $b: f32) -> bool {
                $twin
            }
        )+
    };
}

comparisons! {
    /// a = b?
    equal, equal_into, equal_cpu "f32(a == b)" |a, b| a == b;
    /// a ≠ b?
    not_equal, not_equal_into, not_equal_cpu "f32(a != b || is_nan(a) || is_nan(b))" |a, b| a != b;
    /// a < b?
    less, less_into, less_cpu "f32(a < b)" |a, b| a < b;
    /// a ≤ b?
    less_equal, less_equal_into, less_equal_cpu "f32(a <= b)" |a, b| a <= b;
    /// a > b?
    greater, greater_into, greater_cpu "f32(a > b)" |a, b| a > b;
    /// a ≥ b?
    greater_equal, greater_equal_into, greater_equal_cpu "f32(a >= b)" |a, b| a >= b;
}
