//! What a transformer needs beside its linear layers.

mod attention;
mod attention_batch_invariance;
mod cache;
mod dense_gemv;
mod dense_int8;
mod embed;
mod embed_ternary;
mod flash_attention;
mod mask_logits;
mod penalize;
mod rms_norm;
mod rms_norm_heads;
mod rope;
mod rotate;
mod route;
mod sample;
mod top_k;

use super::{By::*, Family};

pub const OPS: Family = &[
    ("transformer::attention_batch_invariance", Kernels, attention_batch_invariance::cases),
    ("transformer::attention", KernelsAndReference, attention::cases),
    ("transformer::f16_attention", TensorCores, attention::in_f16),
    (
        "transformer::f16_attention_batch_invariance",
        TensorCores,
        attention_batch_invariance::f16_cases,
    ),
    ("transformer::dense_gemv", KernelsAndReference, dense_gemv::cases),
    ("transformer::dense_int8", WgslAndReference, dense_int8::cases),
    ("transformer::embed", Kernels, embed::cases),
    ("transformer::embed_ternary", Wgsl, embed_ternary::cases),
    ("transformer::flash_attention", KernelsAndReference, flash_attention::cases),
    ("transformer::flash_attention_backward", KernelsAndReference, flash_attention::backward_cases),
    ("transformer::mask_logits", Wgsl, mask_logits::cases),
    ("transformer::penalize", Wgsl, penalize::cases),
    ("transformer::rms_norm", Kernels, rms_norm::cases),
    ("transformer::rms_norm_backward", KernelsAndReference, super::tensor::rms_norm_gradients),
    ("transformer::rms_norm_heads", Kernels, rms_norm_heads::cases),
    ("transformer::rope", Kernels, rope::cases),
    ("transformer::rotate", WgslAndReference, rotate::cases),
    ("transformer::route", Kernels, route::cases),
    ("transformer::sample", Wgsl, sample::cases),
    ("transformer::top_k", Kernels, top_k::cases),
];
