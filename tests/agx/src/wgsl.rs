//! Builds the pipeline of every kernel's WGSL with wgpu, as a release build does. Runs in a
//! separate process on the driver.

use crate::{catalog, listing::MARKER};
use bitnet_wgpu::{Context, kernel::ShaderLanguage};
use std::{io::Write as _, path::Path};

/// Begins the line that names the GPU and the driver.
pub const DRIVER: &str = "@@driver";

/// A kernel to build: its name, and its text, in which it is the only entry point.
pub struct Text {
    name: String,
    text: String,
}

/// Every kernel of the catalog.
pub fn catalog() -> Vec<Text> {
    catalog::kernels(ShaderLanguage::Wgsl)
        .map(|kernel| Text { name: kernel.name(), text: kernel.text() })
        .collect()
}

/// The kernel of a file.
///
/// # Errors
/// If it cannot be read.
pub fn of_file(file: &Path) -> Result<Text, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(Text { name: file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), text })
}

/// Builds all pipelines, and prints a [`MARKER`] before and after each.
///
/// # Errors
/// The errors of wgpu and the driver, kernel by kernel.
pub fn compile(kernels: &[Text]) -> Result<(), String> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapter =
        pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))
            .map_err(|e| e.to_string())?;
    let info = adapter.get_info();
    if !info.name.starts_with("Apple ") {
        return Err(format!("the adapter is not an Apple GPU but {}", info.name));
    }
    println!("{DRIVER} {} {}", info.name, info.driver_info);
    let (required_features, required_limits) = Context::device_needs(&adapter);
    let descriptor =
        wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
    let (device, _queue) =
        pollster::block_on(adapter.request_device(&descriptor)).map_err(|e| e.to_string())?;

    let mut failures = String::new();
    for kernel in kernels {
        let scopes = [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::Internal]
            .map(|filter| device.push_error_scope(filter));
        let source = wgpu::ShaderSource::Wgsl(kernel.text.as_str().into());
        let label = Some(kernel.name.as_str());
        // SAFETY: nothing is executed.
        let module = unsafe {
            device.create_shader_module_trusted(
                wgpu::ShaderModuleDescriptor { label, source },
                wgpu::ShaderRuntimeChecks::unchecked(),
            )
        };
        mark(&kernel.name);
        let _pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        mark("");
        for scope in scopes.into_iter().rev() {
            if let Some(error) = pollster::block_on(scope.pop()) {
                failures += &format!("{}: {error}\n", kernel.name);
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// Marks the driver's following output as belonging to this kernel, or with an empty name to none.
pub fn mark(kernel: &str) {
    println!("{MARKER} {kernel}");
    // An error here can be ignored: the kernel would then be missing from the log, which is an
    // error later.
    let _ = std::io::stdout().flush();
}
