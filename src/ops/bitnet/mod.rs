//! BitNet: quantizers and BitLinear.
//!
//! Formulas: Wang et al., *BitNet* (arXiv 2310.11453), Ma et al., *The Era of 1-bit LLMs*
//! (2402.17764), Ma et al., *BitNet b1.58 2B4T* (2504.12285), as transformers computes them.

mod activation_quantizer;
pub(crate) mod activations;
pub(crate) mod bitlinear;
pub(crate) mod bitlinear_block_float;
pub(crate) mod bitlinear_experts;
pub(crate) mod bitlinear_float;
mod bitlinear_gemm;
mod bitlinear_gemv;
pub(crate) mod bitlinear_int;
pub(crate) mod bitlinear_int_quantized;
mod bitlinear_kernels;
mod bitlinear_product;
mod bitlinear_tensor_cores;
pub(crate) mod clamp_gates;
mod decoded;
pub(crate) mod dequantize;
pub(crate) mod dequantize_int;
#[cfg(feature = "train")]
pub(crate) mod fake_quantize_activations;
#[cfg(feature = "train")]
pub(crate) mod fake_quantize_weights;
pub(crate) mod gate;
pub(crate) mod gate_block_float;
pub(crate) mod gate_quantize;
pub(crate) mod hadamard;
pub(crate) mod host_activations;
pub(crate) mod int4;
pub(crate) mod int8;
mod layer;
pub(crate) mod norm_bitlinear;
pub(crate) mod norm_bitlinear_block_float;
mod pack_weights;
mod partition;
pub(crate) mod plan;
pub(crate) mod quantization_error;
pub(crate) mod quantize_activations;
pub(crate) mod quantize_activations_by_tensor;
pub(crate) mod quantize_activations_with_zero_point;
pub(crate) mod quantize_block_float;
pub(crate) mod quantize_gradients;
pub(crate) mod quantize_weights;
pub(crate) mod quantize_weights_binary;
pub(crate) mod quantize_weights_by_group;
pub(crate) mod quantize_weights_int;
pub(crate) mod rms_norm_block_float;
#[cfg(feature = "train")]
pub(crate) mod rms_norm_fake_quantize;
pub(crate) mod rms_norm_quantize;
mod row_quantizer;
pub(crate) mod sort_experts;
pub(crate) mod weight_quantizer;

pub use activation_quantizer::ActivationQuantizer;
pub use activations::{Layout, QuantizedActivations};
pub use layer::{ActivationType, Activations, BitLinear, LinearWeights};
pub(crate) use plan::layout;

family!(
    bitlinear,
    bitlinear_block_float,
    bitlinear_experts,
    bitlinear_float,
    bitlinear_int,
    bitlinear_int_quantized,
    clamp_gates,
    dequantize,
    dequantize_int,
    #[cfg(feature = "train")]
    fake_quantize_activations,
    #[cfg(feature = "train")]
    fake_quantize_weights,
    gate,
    gate_block_float,
    gate_quantize,
    hadamard,
    int4,
    int8,
    norm_bitlinear,
    norm_bitlinear_block_float,
    quantization_error,
    quantize_activations,
    quantize_activations_by_tensor,
    quantize_activations_with_zero_point,
    quantize_block_float,
    quantize_gradients,
    quantize_weights,
    quantize_weights_binary,
    quantize_weights_by_group,
    quantize_weights_int,
    rms_norm_block_float,
    #[cfg(feature = "train")]
    rms_norm_fake_quantize,
    rms_norm_quantize,
    sort_experts,
    weight_quantizer;
    reference: bitlinear, bitlinear_block_float, bitlinear_experts, bitlinear_int_quantized, decoded,
        #[cfg(feature = "train")] fake_quantize_activations,
        #[cfg(feature = "train")] fake_quantize_weights,
        #[cfg(feature = "train")] gate, int4, norm_bitlinear,
        norm_bitlinear_block_float, quantization_error, quantize_activations_by_tensor,
        quantize_activations_with_zero_point, quantize_gradients, rms_norm_block_float,
        weight_quantizer;
    host: clamp_gates, gate, gate_quantize, hadamard, quantize_activations, quantize_block_float,
        rms_norm_quantize
);
