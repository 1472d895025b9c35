//! Every Metal kernel, executed on the CPU in several orders, equals its twin in this crate on awkward shapes.
#![cfg(target_os = "linux")]

mod metal;

use bitnet_wgpu::{Kernel, ShaderLanguage, catalog};
use metal::{
    Leeway, problems,
    run::{Host, orders, threadgroups_limit},
};

/// The kernels with Metal text that start with `prefix`.
fn kernels(prefix: &str) -> impl Iterator<Item = &'static Kernel> {
    catalog().filter(move |kernel| kernel.source(ShaderLanguage::Msl).is_some() && kernel.name.starts_with(prefix))
}

fn equal_their_twins(prefix: &str) {
    let mut ran = 0;
    for kernel in kernels(prefix) {
        let mut host = Host::default();
        for problem in problems(kernel).iter().filter(|problem| problem.threadgroups() <= threadgroups_limit()) {
            for &order in orders() {
                let got = host.run(problem, &problem.variant(ShaderLanguage::Msl, true), order);
                problem.assert(&got, Leeway::None, &format!("{order:?}"));
                ran += 1;
            }
        }
    }
    assert!(ran > 0, "no kernel `{prefix}..` has Metal text");
}

macro_rules! families {
    ($($family:ident $prefix:literal),*) => {
        $(#[test] fn $family() { equal_their_twins($prefix); })*

        #[test]
        fn every_kernel_is_in_a_family() {
            for kernel in kernels("") {
                assert_eq!([$($prefix),*].iter().filter(|prefix| kernel.name.starts_with(**prefix)).count(), 1, "{}", kernel.name);
            }
        }
    };
}

families! {
    gemv "bitlinear_gemv", gemm "bitlinear_gemm", dequantizers "dequantize_", activation_quantizers "quantize_activations",
    weight_quantizer "quantize_weights", sums "sum_abs", gate "relu2_gate", norms "rms_norm", subnormals "half_subnormals",
    quantizing_gate "gate_quantize", embedding "embed_", head "dense_gemv", attention_of_few "attention_few", attention_of_many "attention_many",
    attention_of_shares "attention_combine", rotary_positions "rope", largest "top_k"
}

#[test]
fn every_variant_compiles() {
    for kernel in kernels("") {
        for variant in kernel.variants().into_iter().filter(|variant| variant.language == ShaderLanguage::Msl) {
            let size = kernel.source_for(variant.language).workgroup_size;
            let program = msl_host::Program::compile(&kernel.text(&variant), kernel.entry, size);
            program.unwrap_or_else(|e| panic!("{} {variant:?}: {e}", kernel.name));
        }
    }
}
