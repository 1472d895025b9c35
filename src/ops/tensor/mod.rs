//! Tensor ops: elementwise ops, reductions, matrix products, softmax, norms, and ops that move
//! elements. With the feature `train`, also losses, dropout and gradients. Names are PyTorch's where
//! it has the op.
//!
//! A function such as [`softmax`] returns an op as a value. `forward` records it and returns a new
//! tensor, `forward_into` writes to a tensor of the caller or adds to it:
//!
//! ```no_run
//! # use bitnet_wgpu::{Encoder, Out, Result, Tensor, tensor};
//! # fn f(encoder: &mut Encoder, x: &Tensor<f32>, y: &Tensor<f32>) -> Result<()> {
//! let p = tensor::softmax(x).causal().forward(encoder)?; // of each row of x [.., n]
//! let largest = tensor::max(x, [1]).forward(encoder)?; // over axis 1
//! tensor::silu(x).forward_into(encoder, Out::add(y))?; // y += silu(x)
//! # Ok(())
//! # }
//! ```

pub(crate) mod activations;
pub(crate) mod argmax;
pub(crate) mod binary;
pub(crate) mod broadcast;
pub(crate) mod compare;
pub(crate) mod copy;
#[cfg(feature = "train")]
pub(crate) mod cross_entropy;
#[cfg(feature = "train")]
pub(crate) mod dropout;
pub(crate) mod epilogue;
pub(crate) mod gather;
pub(crate) mod layer_norm;
#[cfg(feature = "train")]
pub(crate) mod linear_cross_entropy;
#[cfg(feature = "train")]
pub(crate) mod linear_cross_entropy_backward;
#[cfg(feature = "train")]
pub(crate) mod linear_distillation;
pub(crate) mod matmul;
pub(crate) mod matmul_int8;
pub(crate) mod matmul_kernels;
pub(crate) mod max;
pub(crate) mod norm;
pub(crate) mod pad_rows;
pub(crate) mod prefix_sum;
pub(crate) mod select;
pub(crate) mod softmax;
pub(crate) mod strided;
pub(crate) mod sum;
pub(crate) mod unary;
pub(crate) mod variance;

pub use super::{op_tables::Unary, reduce::Axes};
pub use crate::element::{ElementType, Float};
pub use half::f16;

family!(
    activations,
    argmax,
    binary,
    broadcast,
    compare,
    copy,
    #[cfg(feature = "train")]
    cross_entropy,
    #[cfg(feature = "train")]
    dropout,
    epilogue,
    gather,
    layer_norm,
    #[cfg(feature = "train")]
    linear_cross_entropy,
    #[cfg(feature = "train")]
    linear_cross_entropy_backward,
    #[cfg(feature = "train")]
    linear_distillation,
    matmul,
    matmul_int8,
    max,
    norm,
    pad_rows,
    prefix_sum,
    select,
    softmax,
    strided,
    sum,
    unary,
    variance;
    reference: argmax, binary, compare, epilogue, gather, layer_norm, matmul,
        matmul_int8, max, norm, prefix_sum, select, softmax, strided, sum, variance,
        #[cfg(feature = "train")] cross_entropy,
        #[cfg(feature = "train")] dropout,
        #[cfg(feature = "train")] linear_cross_entropy,
        #[cfg(feature = "train")] linear_cross_entropy_backward,
        #[cfg(feature = "train")] linear_distillation;
    host: activations, unary
);
