//! BitNet: quantisers and BitLinear.
//!
//! Formulas: Wang et al., *BitNet* (arXiv 2310.11453), Ma et al., *The Era of 1-bit LLMs* (2402.17764), Ma et al., *BitNet b1.58 2B4T*
//! (2504.12285), as transformers computes them.

pub(crate) mod activations;
pub(crate) mod bitlinear;
mod bitlinear_kernels;
pub(crate) mod dequantize;
pub(crate) mod gate_quantize;
pub(crate) mod plan;
pub(crate) mod quantize_activations;
pub(crate) mod quantize_weights;
pub(crate) mod relu2_gate;
pub(crate) mod rms_norm_quantize;
mod row_quantizer;

pub use activations::{HostActivations, Layout, MAX_FEATURES, QuantizedActivations};
pub use bitlinear::{
    accumulators, accumulators_cpu, bitlinear, bitlinear_cpu, bitlinear_into, bitlinear_quantized, bitlinear_quantized_cpu,
    bitlinear_quantized_into,
};
pub use dequantize::{dequantize_activations, dequantize_activations_into, dequantize_weights, dequantize_weights_into};
pub use gate_quantize::{Gate, Norm, gate_quantize, gate_quantize_cpu, gate_quantize_into};
pub use plan::{layout, plan};
pub use quantize_activations::{quantize_activations, quantize_activations_cpu, quantize_activations_into};
pub use quantize_weights::{quantize_weights, quantize_weights_cpu, quantize_weights_into};
pub use relu2_gate::{relu2_gate, relu2_gate_cpu, relu2_gate_into};
pub use rms_norm_quantize::{rms_norm_quantize, rms_norm_quantize_cpu, rms_norm_quantize_into};

pub(super) static KERNELS: &[&crate::kernel::declaration::Kernel] = &[
    &bitlinear_kernels::GEMV_INT8,
    &bitlinear_kernels::GEMV_INT8_TALL,
    &bitlinear_kernels::GEMV_HALF,
    &bitlinear_kernels::GEMV_HALF_SOFTWARE,
    &bitlinear_kernels::GEMV_BIASED,
    &bitlinear_kernels::GEMM_INT8,
    &bitlinear_kernels::GEMM_HALF,
    &bitlinear_kernels::GROUPED,
    &dequantize::ACTIVATIONS_INT8,
    &dequantize::ACTIVATIONS_HALF,
    &dequantize::WEIGHTS,
    &gate_quantize::RELU2_INT8,
    &gate_quantize::RELU2_HALF,
    &gate_quantize::SILU_INT8,
    &gate_quantize::SILU_HALF,
    &gate_quantize::NORM_RELU2_INT8,
    &gate_quantize::NORM_RELU2_HALF,
    &gate_quantize::NORM_SILU_INT8,
    &gate_quantize::NORM_SILU_HALF,
    &quantize_activations::INT8,
    &quantize_activations::HALF,
    &quantize_weights::SUM_ABS,
    &quantize_weights::QUANTIZE_WEIGHTS,
    &relu2_gate::RELU2_GATE,
    &rms_norm_quantize::INT8,
    &rms_norm_quantize::HALF,
];
