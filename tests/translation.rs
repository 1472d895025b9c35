//! WGSL runs on Metal as naga's MSL, and on Vulkan as its SPIR-V: every kernel must survive both writers, without a GPU. And the passthrough path,
//! by which hand-written MSL reaches Metal, is driven here with SPIR-V.

use bitnet_wgpu::{
    Kernel, PackedTernary, ShaderLanguage, bitnet,
    bitnet::Layout,
    catalog,
    kernel::{Access, Variant},
};
use naga::{
    back::{msl, spv},
    valid::{Capabilities, ModuleInfo, ValidationFlags, Validator},
};
use std::sync::Arc;
use support::{activations, block_on, contexts, rng, ternary};

fn parse(text: &str, capabilities: Capabilities) -> (naga::Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let info = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    let info = info.unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    (module, info)
}

/// naga's MSL of a kernel's WGSL, with the buffer numbers that wgpu gives on Metal.
fn to_msl(kernel: &Kernel, (module, info): &(naga::Module, ModuleInfo), lang_version: (u8, u8)) -> String {
    let first = u8::from(!kernel.params.is_empty());
    let target = |i: u8, access| msl::BindTarget { buffer: Some(first + i), mutable: access == Access::ReadWrite, ..Default::default() };
    let bindings = (0u8..).zip(kernel.bindings);
    let resources = bindings.map(|(i, b)| (naga::ResourceBinding { group: 0, binding: i.into() }, target(i, b.access))).collect();
    let resources = msl::EntryPointResources {
        resources,
        immediates_buffer: (first == 1).then_some(0),
        sizes_buffer: Some(first + kernel.bindings.len() as u8),
    };
    let options = msl::Options {
        lang_version,
        per_entry_point_map: [(kernel.entry.to_owned(), resources)].into_iter().collect(),
        fake_missing_bindings: false,
        ..Default::default()
    };
    let entry_point = Some((naga::ShaderStage::Compute, kernel.entry.to_owned()));
    let pipeline = msl::PipelineOptions { entry_point, ..Default::default() };
    let (text, translated) = msl::write_string(module, info, &options, &pipeline).unwrap();
    translated.entry_point_names[0].as_ref().unwrap();
    text
}

#[test]
fn every_kernel_passes_nagas_metal_writer() {
    // wgpu asks for the newest language that the system offers: from Metal 2.4 on (subgroup operations) up to 4.0.
    for kernel in catalog() {
        for variant in kernel.variants().iter().filter(|v| v.language == bitnet_wgpu::ShaderLanguage::Wgsl) {
            let module = parse(&kernel.text(variant), msl::supported_capabilities());
            for version in [(2, 4), (3, 0), (3, 1), (3, 2), (4, 0)] {
                let text = to_msl(kernel, &module, version);
                assert!(text.contains("kernel void"), "{}", kernel.name);
            }
        }
    }
}

fn to_spirv(kernel: &Kernel, text: &str) -> Vec<u32> {
    let (module, info) = parse(text, Capabilities::all());
    let options = spv::Options { lang_version: (1, 3), ..Default::default() };
    let pipeline = spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: kernel.entry.to_owned() };
    spv::write_vec(&module, &info, &options, Some(&pipeline)).unwrap()
}

#[test]
fn the_passthrough_path_gives_equal_results() {
    let mut rng = rng(21);
    for context in contexts().iter().filter(|c| c.device().features().contains(wgpu::Features::PASSTHROUGH_SHADERS)) {
        for (m, n, k) in [(1, 33, 65), (20, 70, 191)] {
            let (x, w): (_, PackedTernary) = (activations(&mut rng, m, k), ternary(&mut rng, n, k));
            for layout in [Layout::Int8, Layout::Half] {
                let mut encoder = context.encoder("passthrough");
                let gx = context.upload(&x, [m, k]).unwrap();
                let xq = support::quantize_as(&mut encoder, &gx, layout).unwrap();
                let y = bitnet::bitlinear_quantized::<f32>(&mut encoder, &xq, &w.upload(context).unwrap()).unwrap();
                // Recorded, and not run: the same dispatches with SPIR-V are.
                let recording = encoder.finish();
                let mut encoder = context.encoder("passthrough");
                for dispatch in recording.dispatches() {
                    let kernel = dispatch.kernel();
                    let variant = Variant {
                        language: ShaderLanguage::Wgsl,
                        subgroups: context.capabilities().subgroups,
                        floats: dispatch.floats().to_vec(),
                    };
                    // SAFETY: naga writes valid modules, with bounds checks.
                    let kernel = Arc::new(unsafe { kernel.with_spirv(to_spirv(kernel, &kernel.text(&variant))) });
                    encoder.repeat(&dispatch, &kernel).unwrap();
                }
                let _ = encoder.submit().unwrap();
                assert_eq!(block_on(y.read()).unwrap(), bitnet::bitlinear_cpu(&x, m, &w).unwrap(), "{m} × {n} × {k}, {layout:?}");
            }
        }
    }
}
