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

/// Gives an op with an input `x` its `backward` and `backward_into`, which take the tensors that are
/// listed. The op has `fn gradient(self, &mut Encoder, .., Out<'_, X>) -> Result<()>`, which checks
/// their shapes.
macro_rules! backward {
    (impl[$($generics:tt)*] $op:ty => $x:ty; $($arg:ident: $type:ty),+) => {
        #[cfg(feature = "train")]
        impl<$($generics)*> $op {
            /// Records the gradient of the op and returns that of its input. The last tensor is the
            /// gradient of the output; the one before, where there are two, is the output itself.
            ///
            /// # Errors
            /// As `forward`; [`Error::Shape`](crate::Error::Shape) if a tensor has another shape
            /// than the output.
            pub fn backward(
                self,
                encoder: &mut $crate::gpu::encoder::Encoder,
                $($arg: &$crate::gpu::tensor::Tensor<$type>,)+
            ) -> $crate::error::Result<$crate::gpu::tensor::Tensor<$x>> {
                let dx = $crate::gpu::tensor::Tensor::uninit(encoder.context(), self.x.shape())?;
                self.gradient(encoder, $($arg,)+ $crate::gpu::out::Out::set(&dx))?;
                Ok(dx)
            }

            /// Like [`backward`](Self::backward), into a tensor of the caller.
            ///
            /// # Errors
            /// As [`backward`](Self::backward); [`Error::Shape`](crate::Error::Shape) if the tensor
            /// has another shape than the input.
            pub fn backward_into<'out>(
                self,
                encoder: &mut $crate::gpu::encoder::Encoder,
                $($arg: &$crate::gpu::tensor::Tensor<$type>,)+
                dx: impl Into<$crate::gpu::out::Out<'out, $x>>,
            ) -> $crate::error::Result<()> {
                self.gradient(encoder, $($arg,)+ dx.into())
            }
        }
    };
}
pub(super) use {backward, forward};
