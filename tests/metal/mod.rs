//! What the Metal tests share: problems, each a kernel with data for it and what it must make of them, and where to run them.
#![allow(dead_code, reason = "each test uses its part")]

mod attention;
mod bitlinear;
mod data;
mod elementwise;
mod problem;
mod quantize;
mod rms_norm;
pub mod run;
mod transformer;
mod translate;

pub use data::{Data, Leeway, Near, U};
pub use problem::Problem;
pub use translate::metal as naga_metal;

/// A GEMV of one token, for timing.
pub fn gemv_problem(kernel: &'static bitnet_wgpu::Kernel, rows: usize, columns: usize) -> Problem {
    bitlinear::problem(kernel, (1, rows, columns), bitnet_wgpu::Element::F32)
}

/// The problems of a kernel.
///
/// # Panics
/// For a kernel that has none: whoever adds a kernel with Metal text adds its problems here.
pub fn problems(kernel: &'static bitnet_wgpu::Kernel) -> Vec<Problem> {
    match kernel.entry {
        "attention" => attention::problems(kernel),
        "attention_combine" => attention::combine(kernel),
        "bitlinear_gemv" | "bitlinear_gemm" => bitlinear::problems(kernel),
        "dense_gemv" => transformer::dense_gemv(kernel),
        "dequantize_activations" => elementwise::dequantize_activations(kernel),
        "dequantize_weights" => elementwise::dequantize_weights(kernel),
        "embed" => transformer::embed(kernel),
        "gate_quantize" => rms_norm::gates(kernel),
        "half_subnormals" => elementwise::half_subnormals(kernel),
        "quantize_activations" => quantize::activations(kernel),
        "quantize_weights" => quantize::weights(kernel),
        "relu2_gate" => elementwise::relu2_gate(kernel),
        "rms_norm" => transformer::rms_norm(kernel),
        "rms_norm_quantize" => rms_norm::problems(kernel),
        "rope" => attention::rope(kernel),
        "sum_abs" => quantize::sums_of(kernel),
        "top_k" => transformer::top_k(kernel),
        other => panic!("tests/metal has no problems for `{other}`"),
    }
}
