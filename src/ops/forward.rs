//! The methods that ops have in common. An op is a value: a function such as
//! [`silu`](crate::tensor::silu) or a layer such as [`BitLinear`](crate::bitnet::BitLinear) makes
//! it, its methods set options, and nothing is recorded before `forward` or `backward`.

/// Gives an op its `forward` and `forward_into`. The op has `fn shape(&self) -> Result<Shape>`, the
/// shape of its result, and `fn record(self, &mut Encoder, Out<'_, Y>) -> Result<()>`, which checks
/// that shape. Ops whose result cannot be added to anything (`overwrite`) take a tensor.
macro_rules! forward {
    (impl[$($generics:tt)*] $op:ty => overwrite $y:ty) => {
        impl<$($generics)*> $op {
            $crate::ops::forward::forward!(@forward $y);

            /// Records the op, which overwrites `y` with its result.
            ///
            /// # Errors
            /// As `forward`; [`Error::Shape`](crate::Error::Shape) if `y` has another shape than
            /// the result.
            pub fn forward_into(
                self,
                encoder: &mut $crate::gpu::encoder::Encoder,
                y: &$crate::gpu::tensor::Tensor<$y>,
            ) -> $crate::error::Result<()> {
                self.record(encoder, $crate::gpu::out::Out::set(y))
            }
        }
    };
    (impl[$($generics:tt)*] $op:ty => $y:ty) => {
        impl<$($generics)*> $op {
            $crate::ops::forward::forward!(@forward $y);

            /// Records the op, which writes its result to a tensor of the caller, or adds it to
            /// one ([`Out::add`](crate::Out::add)).
            ///
            /// # Errors
            /// As `forward`; [`Error::Shape`](crate::Error::Shape) if the tensor has another shape
            /// than the result.
            pub fn forward_into<'out>(
                self,
                encoder: &mut $crate::gpu::encoder::Encoder,
                out: impl Into<$crate::gpu::out::Out<'out, $y>>,
            ) -> $crate::error::Result<()> {
                self.record(encoder, out.into())
            }
        }
    };
    (@forward $y:ty) => {
        /// Records the op and returns its result, a new tensor.
        ///
        /// # Errors
        /// [`Error::Shape`](crate::Error::Shape) or [`Error::Invalid`](crate::Error::Invalid) if
        /// the inputs do not fit, and what an allocation reports.
        pub fn forward(
            self,
            encoder: &mut $crate::gpu::encoder::Encoder,
        ) -> $crate::error::Result<$crate::gpu::tensor::Tensor<$y>> {
            let y = $crate::gpu::tensor::Tensor::uninit(encoder.context(), self.shape()?)?;
            self.record(encoder, $crate::gpu::out::Out::set(&y))?;
            Ok(y)
        }
    };
}
pub(super) use forward;
