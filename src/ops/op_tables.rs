//! Elementwise ops of one tensor. An op that is one expression is a line of a table, which makes
//! its kernels, function, documentation and CPU reference.

use super::{
    forward::{backward, forward},
    frames,
};
use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::declaration::Kernel,
    shape::Shape,
};

/// An elementwise op of one tensor: what [`silu`](crate::tensor::silu),
/// [`exp`](crate::tensor::exp) and others return. Its result has the shape of its input, and may
/// overwrite it, as its gradient may overwrite the input or the gradient of the output.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Unary<'a, T> {
    x: &'a Tensor<T>,
    kernels: &'static Kernels,
    scalars: [f32; 2],
}

/// The kernels of an op and of its gradient.
pub struct Kernels {
    pub forward: Kernel,
    pub backward: Kernel,
}

forward!(impl['a, T: Float] Unary<'a, T> => T);
backward!(impl['a, T: Float] Unary<'a, T> => T; dy: T);

impl<'a, T: Float> Unary<'a, T> {
    pub(super) fn new(x: &'a Tensor<T>, kernels: &'static Kernels, scalars: &[f32]) -> Self {
        let mut two = [0.0; 2];
        two[..scalars.len()].copy_from_slice(scalars);
        Self { x, kernels, scalars: two }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(self.x.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        frames::map(encoder, &self.kernels.forward, &self.scalars, self.x, y)
    }

    #[cfg(feature = "train")]
    fn gradient(self, encoder: &mut Encoder, dy: &Tensor<T>, dx: Out<'_, T>) -> Result<()> {
        let Self { x, kernels, scalars } = self;
        frames::gradient(encoder, &kernels.backward, &scalars, x, dy, dx)
    }
}

/// Ops of one input, each with its gradient. An op is its names, what numbers come with a call,
/// then WGSL and Rust that say the same: the WGSL is an expression in `x` (in `x` and `dy` for the
/// gradient), or the parts that bring `forward` (and `backward`).
macro_rules! unary {
    ($(
        $(#[$doc:meta])*
        $name:ident ($($scalar:ident),*) $forward:tt |$x:ident| $reference:expr;
        $back:ident $backward:tt |$at:ident, $dy:ident| $back_reference:expr;
    )+) => {
        pub(super) const KERNELS: &[&$crate::kernel::declaration::Kernel] =
            &[$(&$name::KERNELS.forward, &$name::KERNELS.backward),+];
        $(
            mod $name {
                use $crate::ops::{frames, op_tables::{self, Kernels}};
                pub static KERNELS: Kernels = Kernels {
                    forward: frames::one_input(
                        stringify!($name), op_tables::unary!(@forward $forward)).one_float(),
                    backward: frames::two_inputs(
                        stringify!($back), op_tables::unary!(@backward $backward)).one_float(),
                };
            }

            $(#[$doc])*
            pub fn $name<T: $crate::element::Float>(
                x: &$crate::gpu::tensor::Tensor<T>,
                $($scalar: f32,)*
            ) -> $crate::ops::op_tables::Unary<'_, T> {
                $crate::ops::op_tables::Unary::new(x, &$name::KERNELS, &[$($scalar),*])
            }
        )+

        pub(crate) mod host {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[doc = concat!("CPU reference of [`", stringify!($name), "`](crate::tensor::", stringify!($name), "), of one number.")]
                pub fn $name($x: f32 $(, $scalar: f32)*) -> f32 {
                    $reference
                }

                #[doc = concat!("CPU reference of the gradient of [`", stringify!($name), "`](crate::tensor::", stringify!($name), ").")]
                #[allow(unused_variables)]
                pub fn $back($at: f32, $($scalar: f32,)* $dy: f32) -> f32 {
                    $back_reference
                }
            )+
        }
    };
    (@forward [$($part:tt),*]) => { frames::elementwise!("frames/elementwise_1", [$($part),*]) };
    (@forward $expression:literal) => {{
        const FORWARD: $crate::kernel::source::Part =
            frames::function!("forward(x: f32)", $expression);
        frames::elementwise!("frames/elementwise_1", [FORWARD])
    }};
    (@backward [$($part:tt),*]) => {{
        use frames::ALIKE;
        const COMBINE: $crate::kernel::source::Part =
            frames::function!("combine(x: f32, dy: f32)", "backward(x, dy)");
        frames::elementwise!("frames/elementwise_2", [$($part,)* ALIKE, COMBINE])
    }};
    (@backward $expression:literal) => {{
        use frames::ALIKE;
        const COMBINE: $crate::kernel::source::Part =
            frames::function!("combine(x: f32, dy: f32)", $expression);
        frames::elementwise!("frames/elementwise_2", [ALIKE, COMBINE])
    }};
}
pub(super) use unary;
