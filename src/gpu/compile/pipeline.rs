//! From a kernel's source to a compiled pipeline. Handing sources to drivers, the crate's
//! shader-related `unsafe`, is all here.

use super::cache::{Cached, KernelCache};
use crate::{
    error::{Error, Result},
    gpu::device::{metal::compiler_message, scopes::guarded},
    kernel::{
        binding::Access,
        contract,
        declaration::{Kernel, Variant},
    },
    language::ShaderLanguage,
};
use std::borrow::Cow;

pub struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    /// The language that it was compiled from, which decides its workgroup size and tile.
    pub language: ShaderLanguage,
}

/// Compiles a variant or, where its source does not compile, the one that may take its place. The
/// log then has one warning with the compiler's message.
pub fn build(
    device: &wgpu::Device,
    kernel: &Kernel,
    variant: &Variant,
    instead: Option<&Variant>,
    cache: Option<&KernelCache>,
) -> Result<Pipeline> {
    match (compile(device, kernel, variant, cache), instead) {
        (Err(Error::Shader { kernel: name, language, message }), Some(instead)) => {
            log::warn!(
                "kernel `{name}` does not compile from {language}; its {} source is used instead:\n{message}",
                instead.language
            );
            compile(device, kernel, instead, cache)
        }
        (compiled, _) => compiled,
    }
}

fn compile(
    device: &wgpu::Device,
    kernel: &Kernel,
    variant: &Variant,
    cache: Option<&KernelCache>,
) -> Result<Pipeline> {
    let error =
        |message| Error::Shader { kernel: kernel.name, language: variant.language, message };
    // The crate's own kernels pass the contract test; a caller's are checked here, and keep their
    // bounds checks.
    if cfg!(debug_assertions) || !kernel.trusted {
        contract::check(kernel, variant).map_err(error)?;
    }
    let entry = |i: usize, access| wgpu::BindGroupLayoutEntry {
        binding: i as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: access == Access::Read },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    };
    let entries: Vec<_> =
        kernel.bindings.iter().enumerate().map(|(i, binding)| entry(i, binding.access)).collect();
    // SPIR-V has no source that it could be identified by.
    let joined = kernel.joined(variant);
    let text = &joined.source;
    let cached = cache
        .filter(|_| !text.is_empty())
        .and_then(|cache| cache.open(device, kernel.name, text.as_bytes()));
    let create = || {
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(kernel.name),
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(kernel.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 4 * kernel.params.len() as u32,
        });
        let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.name),
            layout: Some(&pipeline_layout),
            module: &module(device, kernel, variant, text),
            entry_point: Some(kernel.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: cached.as_ref().map(Cached::raw),
        });
        Pipeline { raw, layout, language: variant.language }
    };
    let pipeline = guarded(device, || format!("compiling `{}`", kernel.name), create).map_err(
        |e| match e {
            Error::Gpu { message, .. } => {
                let said = compiler_message(device, variant.language, text);
                error(said.map_or(message, |said| joined.metal_message(&said)))
            }
            other => other,
        },
    )?;
    if let Some(cached) = cached {
        cached.keep();
    }
    Ok(pipeline)
}

#[allow(unsafe_code)]
fn module(
    device: &wgpu::Device,
    kernel: &Kernel,
    variant: &Variant,
    text: &str,
) -> wgpu::ShaderModule {
    let label = Some(kernel.name);
    let [x, y, z] = kernel.source_for(variant.language).workgroup_size;
    let entry_point =
        wgpu::PassthroughShaderEntryPoint { name: kernel.entry.into(), workgroup_size: (x, y, z) };
    let passthrough = wgpu::ShaderModuleDescriptorPassthrough {
        label,
        entry_points: Cow::Owned(vec![entry_point]),
        ..Default::default()
    };
    match (variant.language, kernel.words(variant)) {
        (ShaderLanguage::Msl, _) => {
            let descriptor =
                wgpu::ShaderModuleDescriptorPassthrough { msl: Some(text.into()), ..passthrough };
            // SAFETY: the source's signature agrees with the declaration: `contract` has seen it.
            unsafe { device.create_shader_module_passthrough(descriptor) }
        }
        (ShaderLanguage::Spirv, Some(words)) => {
            let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
                spirv: Some(words.as_ref().into()),
                ..passthrough
            };
            // SAFETY: who made it with `Kernel::with_spirv` has promised that it is sound; of the
            // crate's own, `contract` has seen the signature, and their sources keep to the bounds
            // that their ops give them.
            unsafe { device.create_shader_module_passthrough(descriptor) }
        }
        _ => {
            let descriptor = wgpu::ShaderModuleDescriptor {
                label,
                source: wgpu::ShaderSource::Wgsl(text.into()),
            };
            if cfg!(debug_assertions) || !kernel.trusted {
                return device.create_shader_module(descriptor);
            }
            // SAFETY: these are the crate's own kernels, which keep to the bounds that their ops
            // give them; tests run them checked, on odd shapes.
            unsafe {
                device.create_shader_module_trusted(
                    descriptor,
                    wgpu::ShaderRuntimeChecks::unchecked(),
                )
            }
        }
    }
}
