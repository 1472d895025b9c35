//! Quantizers of weights and activations.

use super::threads::enter;
use crate::{
    element::Float,
    error::Result,
    ops::{
        bitnet::{QuantizedWeights, WeightQuantizer, host_activations::HostActivations},
        host,
    },
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

/// Quantizes activations `[tokens, features]` to 8 bits, with a scale for each token, as
/// [`ActivationQuantizer::int8`](crate::bitnet::ActivationQuantizer::int8) does on the GPU:
/// bit-identical. [`BitLinear`](super::BitLinear) does it by itself.
///
/// ```
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let quantized = bitnet_wgpu::cpu::quantize_activations(&[0.5, -1.0, 0.25, 0.0], 1, 4)?;
/// assert_eq!(quantized.codes, [64, -127, 32, 0]);
/// assert_eq!(quantized.scales, [127.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Length`](crate::Error::Length) if `x` is not whole rows.
pub fn quantize_activations<T: Float>(
    x: &[T],
    tokens: usize,
    features: usize,
) -> Result<HostActivations> {
    /// Numbers whose quantization is worth a thread.
    const WORTH: usize = 1 << 14;
    enter(x.len() >= WORTH, || host::quantize_activations(x, tokens, features))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cpu::Threads, error::Error};

    #[test]
    fn quantizers_do_not_depend_on_threads() {
        let w: Vec<f32> = (0..70 * 2000).map(|i| (i as f32 * 0.7).sin()).collect();
        let quantize = || {
            let weights = quantize_weights(&w, [70, 2000], WeightQuantizer::absmean()).unwrap();
            (weights, quantize_activations(&w, 70, 2000).unwrap())
        };
        let expected = quantize();
        for count in [1, 2, 3] {
            assert!(Threads::new(count).unwrap().run(quantize) == expected, "{count}");
        }
    }

    #[test]
    fn weights_that_do_not_fit_are_refused() {
        let quantizer = WeightQuantizer::absmean();
        let found = quantize_weights(&[1.0f32; 5], [2, 3], quantizer);
        assert!(matches!(found, Err(Error::Length { .. })));
        let found = quantize_weights(&[1.0, 2.0, f32::NAN, 1.0], [2, 2], quantizer);
        assert!(found.unwrap_err().to_string().contains("row 1, column 0"));
        let found = quantize_weights(&[1.0f32; 6], [2, 3], quantizer.per_group(5));
        assert!(matches!(found, Err(Error::Invalid { .. })));
        assert!(matches!(quantize_activations(&[1.0f32; 5], 2, 3), Err(Error::Length { .. })));
    }
}
