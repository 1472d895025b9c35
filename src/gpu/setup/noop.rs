//! wgpu's device that copies, and does nothing else, for tests.

use crate::gpu::context::Context;
use pollster::block_on;

pub fn adapter() -> wgpu::Adapter {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    block_on(wgpu::Instance::new(descriptor).request_adapter(&Default::default())).unwrap()
}

pub fn context() -> Context {
    let adapter = adapter();
    let (required_features, _) = Context::device_needs(&adapter);
    let required_limits = wgpu::Limits { max_immediate_size: 64, ..wgpu::Limits::default() };
    let descriptor =
        wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
    let (device, queue) = block_on(adapter.request_device(&descriptor)).unwrap();
    block_on(Context::from_wgpu(&adapter, device, queue)).unwrap()
}
