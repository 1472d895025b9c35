//! From a kernel's text to a compiled pipeline, once per variant. All of the crate's shader-related `unsafe` is here.

use crate::{
    Error, Kernel, Result, ShaderLanguage,
    context::{Translate, guarded},
    contract,
    kernel::{Access, Variant},
};
use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

pub(crate) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// The address of a kernel, which is static; a name might be another crate's too.
type Key = (usize, Variant, bool);

/// Compiled kernels by kernel and variant.
#[derive(Default)]
pub(crate) struct Pipelines(Mutex<HashMap<Key, Arc<Pipeline>>>);

impl Pipelines {
    pub fn get(
        &self,
        device: &wgpu::Device,
        kernel: &'static Kernel,
        variant: Variant,
        translate: Option<Translate>,
    ) -> Result<Arc<Pipeline>> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (std::ptr::from_ref(kernel).addr(), variant, translate.is_some());
        if let Some(pipeline) = lock().get(&key) {
            return Ok(pipeline.clone());
        }
        // Compiled outside the lock: two threads may compile the same kernel, the first to finish is kept.
        let pipeline = Arc::new(build(device, kernel, &key.1, translate)?);
        Ok(lock().entry(key).or_insert(pipeline).clone())
    }
}

fn build(device: &wgpu::Device, kernel: &'static Kernel, variant: &Variant, translate: Option<Translate>) -> Result<Pipeline> {
    let error = |message| Error::Shader { kernel: kernel.name, language: variant.language, message };
    // The crate's own kernels pass the contract test; a caller's are checked here, and keep their bounds checks.
    let own = crate::catalog().any(|own| std::ptr::eq(own, kernel));
    if cfg!(debug_assertions) || !own {
        contract::check(kernel, variant).map_err(error)?;
    }
    let text = kernel.text(variant);
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
    let entries: Vec<_> = kernel.bindings.iter().enumerate().map(|(i, binding)| entry(i, binding.access)).collect();
    let compile = || {
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(kernel.name), entries: &entries });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(kernel.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 4 * kernel.params.len() as u32,
        });
        let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.name),
            layout: Some(&pipeline_layout),
            module: &module(device, kernel, variant, &text, translate, own && !cfg!(debug_assertions)),
            entry_point: Some(kernel.entry),
            compilation_options: wgpu::PipelineCompilationOptions { zero_initialize_workgroup_memory: false, ..Default::default() },
            cache: None,
        });
        Pipeline { raw, layout }
    };
    guarded(device, || format!("compiling `{}`", kernel.name), compile).map_err(|e| match e {
        Error::Gpu { message, .. } => error(message),
        other => other,
    })
}

#[allow(unsafe_code)]
fn module(
    device: &wgpu::Device,
    kernel: &'static Kernel,
    variant: &Variant,
    text: &str,
    translate: Option<Translate>,
    trusted: bool,
) -> wgpu::ShaderModule {
    let label = Some(kernel.name);
    let [x, y, z] = kernel.source(variant.language).workgroup_size;
    let entry_point = wgpu::PassthroughShaderEntryPoint { name: kernel.entry.into(), workgroup_size: (x, y, z) };
    let passthrough = wgpu::ShaderModuleDescriptorPassthrough { label, entry_points: Cow::Owned(vec![entry_point]), ..Default::default() };
    match (variant.language, translate) {
        // SAFETY: the text's signature agrees with the declaration: `contract` has seen it.
        (ShaderLanguage::Msl, _) => unsafe {
            device.create_shader_module_passthrough(wgpu::ShaderModuleDescriptorPassthrough { msl: Some(text.into()), ..passthrough })
        },
        // SAFETY: as above; `translate` is naga's SPIR-V writer.
        (ShaderLanguage::Wgsl, Some(translate)) => unsafe {
            let spirv = translate(kernel, text).into();
            device.create_shader_module_passthrough(wgpu::ShaderModuleDescriptorPassthrough { spirv: Some(spirv), ..passthrough })
        },
        (ShaderLanguage::Wgsl, None) => {
            let source = wgpu::ShaderSource::Wgsl(text.into());
            let descriptor = wgpu::ShaderModuleDescriptor { label, source };
            if !trusted {
                return device.create_shader_module(descriptor);
            }
            // SAFETY: these are the crate's own kernels, which keep to the bounds that their ops give them; tests run them checked, on odd
            // shapes.
            unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
        }
    }
}
