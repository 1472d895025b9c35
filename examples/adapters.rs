//! Lists the GPUs, their capabilities, and the kernels that this crate would choose on each. `cargo run --release --example adapters`

use bitnet_wgpu::{Context, bitnet, wgpu};
use pollster::block_on;

fn main() {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle().with_env());
    let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    if adapters.is_empty() {
        println!("no adapters; the CPU functions (bitnet::*_cpu) need none");
    }
    for adapter in adapters {
        let (features, limits) = Context::device_needs(&adapter);
        let descriptor = wgpu::DeviceDescriptor { required_features: features, required_limits: limits, ..Default::default() };
        println!("{}", adapter.get_info().name);
        let opened = block_on(adapter.request_device(&descriptor)).map_err(|e| e.to_string());
        let context = opened.and_then(|(device, queue)| block_on(Context::from_wgpu(&adapter, device, queue)).map_err(|e| e.to_string()));
        let context = match context {
            Ok(context) => context,
            Err(error) => {
                println!("  cannot be used: {error}\n");
                continue;
            }
        };
        let c = context.capabilities();
        println!("  {} on {:?}; kernels in {:?}, {:?} by choice", c.driver, c.backend, c.languages, context.language());
        println!("  subgroup operations {}, f16 {}, subnormal halves kept {}", c.subgroups, c.f16, c.half_subnormals);
        println!("  timestamps {}, largest tensor {} MiB", c.timestamps, c.max_binding_bytes >> 20);
        for (tokens, features) in [(1, 2560), (512, 2560)] {
            let layout = bitnet::layout(features, c, context.language());
            println!("  {tokens} × {features}: {:?} activations, {:?}", layout, bitnet::plan(tokens, 2560, layout, false, c));
        }
        println!();
    }
}
