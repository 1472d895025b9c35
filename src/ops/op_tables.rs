//! Ops that are one expression: a line of a table makes kernel, functions, documentation and CPU
//! twin.

/// Ops of one input, each with its gradient. An op is its names, what numbers come with a call,
/// then WGSL and Rust that say the same: the WGSL is an expression in `x` (in `x` and `dy` for the
/// gradient), or the parts that bring `forward` (and `backward`).
macro_rules! unary {
    ($(
        $(#[$doc:meta])*
        $name:ident, $into:ident, $cpu:ident ($($scalar:ident),*) $forward:tt |$x:ident| $twin:expr;
        $back:ident, $back_into:ident, $back_cpu:ident $backward:tt |$at:ident, $dy:ident| $back_twin:expr;
    )+) => {
        pub(super) const KERNELS: &[&$crate::kernel::declaration::Kernel] = &[$(&$name::FORWARD, &$name::BACKWARD),+];
        $(
            mod $name {
                use $crate::{kernel::declaration::Kernel, ops::{frames, op_tables}};
                pub static FORWARD: Kernel = frames::one_input(stringify!($name), op_tables::unary!(@forward $forward)).one_float();
                pub static BACKWARD: Kernel = frames::two_inputs(stringify!($back), op_tables::unary!(@backward $backward)).one_float();
            }

            $(#[$doc])*
            ///
            /// # Errors
            /// What the device reports.
            pub fn $name<T: $crate::element::Float>(
                encoder: &mut $crate::gpu::encoder::Encoder,
                x: &$crate::gpu::tensor::Tensor<T>,
                $($scalar: f32,)*
            ) -> $crate::error::Result<$crate::gpu::tensor::Tensor<T>> {
                let y = $crate::gpu::tensor::Tensor::uninit(encoder.context(), x.shape())?;
                $into(encoder, x, $($scalar,)* &y)?;
                Ok(y)
            }

            #[doc = concat!("[`", stringify!($name), "`] into a tensor of the caller, which may be `x` itself.")]
            ///
            /// # Errors
            /// [`Error::Shape`](crate::Error::Shape) if it has another shape.
            pub fn $into<'y, T: $crate::element::Float>(
                encoder: &mut $crate::gpu::encoder::Encoder,
                x: &$crate::gpu::tensor::Tensor<T>,
                $($scalar: f32,)*
                y: impl Into<$crate::gpu::out::Out<'y, T>>,
            ) -> $crate::error::Result<()> {
                $crate::ops::frames::map(encoder, &$name::FORWARD, &[$($scalar),*], x, y.into())
            }

            #[doc = concat!("The gradient of [`", stringify!($name), "`] at `x`, where `dy` is that of its output.")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($back_into), "`].")]
            pub fn $back<T: $crate::element::Float>(
                encoder: &mut $crate::gpu::encoder::Encoder,
                x: &$crate::gpu::tensor::Tensor<T>,
                $($scalar: f32,)*
                dy: &$crate::gpu::tensor::Tensor<T>,
            ) -> $crate::error::Result<$crate::gpu::tensor::Tensor<T>> {
                let dx = $crate::gpu::tensor::Tensor::uninit(encoder.context(), x.shape())?;
                $back_into(encoder, x, $($scalar,)* dy, &dx)?;
                Ok(dx)
            }

            #[doc = concat!("[`", stringify!($back), "`] into a tensor of the caller, which may be `x` or `dy` itself.")]
            ///
            /// # Errors
            /// [`Error::Shape`](crate::Error::Shape) if `dy` or the output has another shape than
            /// `x`.
            pub fn $back_into<'y, T: $crate::element::Float>(
                encoder: &mut $crate::gpu::encoder::Encoder,
                x: &$crate::gpu::tensor::Tensor<T>,
                $($scalar: f32,)*
                dy: &$crate::gpu::tensor::Tensor<T>,
                dx: impl Into<$crate::gpu::out::Out<'y, T>>,
            ) -> $crate::error::Result<()> {
                $crate::ops::frames::gradient(encoder, &$name::BACKWARD, &[$($scalar),*], x, dy, dx.into())
            }

            #[doc = concat!("The CPU twin of [`", stringify!($name), "`].")]
            pub fn $cpu($x: f32 $(, $scalar: f32)*) -> f32 {
                $twin
            }

            #[doc = concat!("The CPU twin of [`", stringify!($back), "`].")]
            #[allow(unused_variables)]
            pub fn $back_cpu($at: f32, $($scalar: f32,)* $dy: f32) -> f32 {
                $back_twin
            }
        )+
    };
    (@forward [$($part:tt),*]) => { $crate::ops::frames::elementwise!("frames/elementwise_1", [$($part),*]) };
    (@forward $expression:literal) => {{
        const FORWARD: $crate::kernel::source::Part = $crate::ops::frames::function!("forward(x: f32)", $expression);
        $crate::ops::frames::elementwise!("frames/elementwise_1", [FORWARD])
    }};
    (@backward [$($part:tt),*]) => {{
        use $crate::ops::frames::ALIKE;
        const COMBINE: $crate::kernel::source::Part = $crate::ops::frames::function!("combine(x: f32, dy: f32)", "backward(x, dy)");
        $crate::ops::frames::elementwise!("frames/elementwise_2", [$($part,)* ALIKE, COMBINE])
    }};
    (@backward $expression:literal) => {{
        use $crate::ops::frames::ALIKE;
        const COMBINE: $crate::kernel::source::Part = $crate::ops::frames::function!("combine(x: f32, dy: f32)", $expression);
        $crate::ops::frames::elementwise!("frames/elementwise_2", [ALIKE, COMBINE])
    }};
}
pub(super) use unary;
