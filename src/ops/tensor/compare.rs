//! Comparisons: 1 where they hold, else 0, in words. A comparison with NaN does not hold, but for
//! [`not_equal`].

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        source::Part,
    },
    ops::{
        forward::forward,
        frames::{ALIKE, broadcast_shape, combine, elementwise, function, two_inputs_of},
    },
    shape::Shape,
};

const BINDINGS: &[Binding; 3] =
    &[read("a", Float("X")), read("b", Float("X")), read_write("y", U32)];
const WORDS: Part = Part::new("alias Y", "alias Y = u32;\n");

/// A comparison of two tensors, element by element: what [`equal`], [`less`] and others return.
/// Both are broadcast to the shape of the result.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Comparison<'a, T> {
    a: &'a Tensor<T>,
    b: &'a Tensor<T>,
    kernel: &'static Kernel,
}

forward!(impl['a, T: Float] Comparison<'a, T> => overwrite u32);

impl<T: Float> Comparison<'_, T> {
    fn shape(&self) -> Result<Shape> {
        broadcast_shape(self.kernel.name, self.a.shape(), self.b.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, u32>) -> Result<()> {
        combine(encoder, self.kernel, self.a, self.b, y)
    }
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident $expression:literal |$a:ident, $b:ident| $reference:expr;)+) => {
        pub(super) const KERNELS: &[&Kernel] = &[$(&$name::KERNEL),+];
        $(
            mod $name {
                use super::*;
                const COMBINE: Part = function!("combine(a: f32, b: f32)", $expression);
                pub static KERNEL: Kernel = two_inputs_of(stringify!($name), BINDINGS, elementwise!("frames/elementwise_2", [WORDS, ALIKE, COMBINE]));
            }

            $(#[$doc])*
            pub fn $name<'a, T: Float>(a: &'a Tensor<T>, b: &'a Tensor<T>) -> Comparison<'a, T> {
                Comparison { a, b, kernel: &$name::KERNEL }
            }
        )+

        #[cfg(any(test, feature = "reference"))]
        pub(crate) mod reference {
            $(
                #[doc = concat!("CPU reference of [`", stringify!($name), "`](crate::tensor::", stringify!($name), "), of two numbers.")]
                pub fn $name($a: f32, $b: f32) -> bool {
                    $reference
                }
            )+
        }
    };
}

comparisons! {
    /// 1 where a = b, else 0.
    equal "f32(a == b)" |a, b| a == b;
    /// 1 where a ≠ b, else 0.
    not_equal "f32(a != b || is_nan(a) || is_nan(b))" |a, b| a != b;
    /// 1 where a < b, else 0.
    less "f32(a < b)" |a, b| a < b;
    /// 1 where a ≤ b, else 0.
    less_equal "f32(a <= b)" |a, b| a <= b;
    /// 1 where a > b, else 0.
    greater "f32(a > b)" |a, b| a > b;
    /// 1 where a ≥ b, else 0.
    greater_equal "f32(a >= b)" |a, b| a >= b;
}
