//! Ops on tensors of any meaning.

mod mul;
mod pad_rows;
mod relu2;
mod sigmoid;
mod silu;

use super::{By::*, Family};
use crate::Recorder;
use bitnet_wgpu::{Encoder, Float, Result, Tensor};

pub const OPS: Family = &[
    ("tensor::mul", Kernels, mul::cases),
    ("tensor::pad_rows", Kernels, pad_rows::cases),
    ("tensor::relu2", Kernels, relu2::cases),
    ("tensor::sigmoid", KernelsAndTwin, sigmoid::cases),
    ("tensor::silu", KernelsAndTwin, silu::cases),
];

/// An op in its two forms: into a tensor that it allocates, of the input's type, and into one of another type.
fn in_both_forms<X: Float, Y: Float>(
    r: &mut Recorder,
    op: impl FnOnce(&mut Encoder) -> Result<Tensor<X>>,
    into: impl FnOnce(&mut Encoder, &Tensor<Y>) -> Result<()>,
) -> Result<()> {
    let allocated = op(&mut r.encoder)?;
    let y = r.output::<Y>(allocated.shape())?;
    into(&mut r.encoder, &y)?;
    r.watch_all(&allocated);
    r.watch_all(&y);
    Ok(())
}
