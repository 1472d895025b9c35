//! WGSL runs on Metal as naga's MSL: every kernel passes that writer in every version of Metal.
//! `ops` compares the results.

#[cfg(target_os = "linux")]
mod exact;

use bitnet_wgpu::{
    internals::{KernelInternals as _, catalog},
    kernel::ShaderLanguage,
};
use naga::back::msl;
use support::machine::{naga_metal, parse};

#[test]
fn every_kernel_passes_nagas_metal_writer() {
    // wgpu asks for the newest language that the system offers: from Metal 2.4 on (subgroup
    // operations) up to 4.0. On Metal, no kernel runs on tensor cores by its WGSL: naga writes
    // matrices of 16 × 16, which Metal does not have.
    for kernel in catalog().filter(|kernel| kernel.tensor_core.is_none()) {
        for variant in kernel.variants().iter().filter(|v| v.language == ShaderLanguage::Wgsl) {
            let module = parse(&kernel.joined_source(variant), msl::supported_capabilities());
            for version in [(2, 4), (3, 0), (3, 1), (3, 2), (4, 0)] {
                assert!(
                    naga_metal(kernel, &module, version).0.contains("kernel void"),
                    "{}",
                    kernel.name
                );
            }
        }
    }
}
