//! Builds the pipeline of every kernel's WGSL with wgpu, as a release build does. Runs in a separate process on the driver.

use crate::{catalog, listing::MARKER};
use bitnet_wgpu::{Context, ShaderLanguage};
use std::io::Write as _;

/// Begins the line that names the GPU and the driver.
pub const DRIVER: &str = "@@driver";

/// Builds all pipelines, and prints a [`MARKER`] before and after each.
///
/// # Errors
/// The errors of wgpu and the driver, kernel by kernel.
pub fn compile() -> Result<(), String> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default())).map_err(|e| e.to_string())?;
    let info = adapter.get_info();
    if !info.name.starts_with("Apple ") {
        return Err(format!("the adapter is not an Apple GPU but {}", info.name));
    }
    println!("{DRIVER} {} {}", info.name, info.driver_info);
    let (required_features, required_limits) = Context::device_needs(&adapter);
    let descriptor = wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
    let (device, _queue) = pollster::block_on(adapter.request_device(&descriptor)).map_err(|e| e.to_string())?;

    let mut failures = String::new();
    for kernel in catalog::kernels(ShaderLanguage::Wgsl) {
        let scopes = [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::Internal].map(|filter| device.push_error_scope(filter));
        let source = wgpu::ShaderSource::Wgsl(kernel.text().into());
        let label = Some(kernel.declaration.name);
        // SAFETY: nothing is executed.
        let module = unsafe {
            device.create_shader_module_trusted(wgpu::ShaderModuleDescriptor { label, source }, wgpu::ShaderRuntimeChecks::unchecked())
        };
        mark(&kernel.name());
        let _pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: None,
            module: &module,
            entry_point: Some(kernel.declaration.entry),
            compilation_options: wgpu::PipelineCompilationOptions { zero_initialize_workgroup_memory: false, ..Default::default() },
            cache: None,
        });
        mark("");
        for scope in scopes.into_iter().rev() {
            if let Some(error) = pollster::block_on(scope.pop()) {
                failures += &format!("{}: {error}\n", kernel.name());
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// Marks the driver's following output as belonging to this kernel, or with an empty name to none.
pub fn mark(kernel: &str) {
    println!("{MARKER} {kernel}");
    // An error here can be ignored: the kernel would then be missing from the log, which is an error later.
    let _ = std::io::stdout().flush();
}
