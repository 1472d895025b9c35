//! Quantizers of weights.

use super::threads::enter;
use crate::{
    element::Float,
    error::Result,
    ops::bitnet::{QuantizedWeights, WeightQuantizer},
    shape::Shape,
};

/// Quantizes weights of `shape`, `[.., columns]`, as [`WeightQuantizer::quantize`] does on the GPU:
/// bit-identical to it and to [`reference::quantize_weights`](crate::reference::quantize_weights).
/// [`WeightQuantizer::absmean`] returns [`PackedTernary`](crate::weights::PackedTernary), the
/// others return [`PackedInt`](crate::weights::PackedInt).
///
/// ```
/// use bitnet_wgpu::{bitnet::WeightQuantizer, cpu};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let weights = [1.5, -0.4, 0.3, 0.0, 0.8, -1.5, 1.5, 0.0];
/// let packed = cpu::quantize_weights(&weights, [2, 4], WeightQuantizer::absmean())?;
/// assert_eq!(packed.to_values(), [1, -1, 0, 0, 1, -1, 1, 0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Length`](crate::Error::Length) if there are not as many weights;
/// [`Error::Invalid`](crate::Error::Invalid) for weights that are not finite, and as
/// [`WeightQuantizer::quantize`].
pub fn quantize_weights<T: Float, M: QuantizedWeights>(
    w: &[T],
    shape: impl Into<Shape>,
    quantizer: WeightQuantizer<M>,
) -> Result<M::Packed> {
    let shape = shape.into();
    enter(true, || quantizer.quantize_cpu(w, shape))
}
