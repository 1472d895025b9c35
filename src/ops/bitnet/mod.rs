//! BitNet: quantisers and BitLinear.
//!
//! Formulas: Wang et al., *BitNet* (arXiv 2310.11453), Ma et al., *The Era of 1-bit LLMs* (2402.17764), Ma et al., *BitNet b1.58 2B4T*
//! (2504.12285), as transformers computes them.

mod activations;
mod bitlinear;
mod dequantize;
mod gate_quantize;
mod plan;
mod quantize_activations;
mod quantize_weights;
mod relu2_gate;
mod rms_norm_quantize;

pub use activations::{HostActivations, Layout, QuantizedActivations};
pub use bitlinear::{
    accumulators, accumulators_cpu, bitlinear, bitlinear_add, bitlinear_cpu, bitlinear_into, bitlinear_quantized, bitlinear_quantized_cpu,
};
pub use dequantize::{dequantize_activations, dequantize_weights};
pub use gate_quantize::{Gate, Norm, gate_quantize, gate_quantize_cpu, gate_quantize_into};
pub use plan::{MAX_FEATURES, Method, layout, plan};
pub use quantize_activations::{quantize_activations, quantize_activations_as, quantize_activations_cpu, quantize_activations_into};
pub use quantize_weights::{quantize_weights, quantize_weights_cpu};
pub use relu2_gate::{relu2_gate, relu2_gate_cpu};
pub use rms_norm_quantize::{rms_norm_quantize, rms_norm_quantize_as, rms_norm_quantize_cpu, rms_norm_quantize_into};

pub(super) static KERNELS: &[&crate::Kernel] = &[
    &bitlinear::GEMV_INT8,
    &bitlinear::GEMV_INT8_TALL,
    &bitlinear::GEMV_HALF,
    &bitlinear::GEMV_HALF_SOFTWARE,
    &bitlinear::GEMV_BIASED,
    &bitlinear::GEMM_INT8,
    &bitlinear::GEMM_HALF,
    &bitlinear::GROUPED,
    &dequantize::ACTIVATIONS_INT8,
    &dequantize::ACTIVATIONS_HALF,
    &dequantize::WEIGHTS,
    &gate_quantize::INT8,
    &gate_quantize::HALF,
    &quantize_activations::INT8,
    &quantize_activations::HALF,
    &quantize_weights::SUM_ABS,
    &quantize_weights::QUANTIZE_WEIGHTS,
    &relu2_gate::RELU2_GATE,
    &rms_norm_quantize::INT8,
    &rms_norm_quantize::HALF,
];
