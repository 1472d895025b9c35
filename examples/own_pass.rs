//! BitLinear between two compute passes of an app, on the app's device and in its buffers: one
//! submission, no copy. `cargo run --release --example own_pass`

use bitnet_wgpu::{Context, Tensor, bitnet, cpu};
use wgpu::BufferUsages as Usage;

mod support;

const TOKENS: usize = 3;
const FEATURES: usize = 512;
const OUTPUTS: usize = 256;

/// The app's passes: one makes activations, the other doubles what BitLinear makes of them.
const APP: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<f32>;

    @compute @workgroup_size(64)
    fn wave(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < arrayLength(&data) { data[id.x] = f32(i32(id.x * 37u % 101u) - 50) / 32.0; }
    }

    @compute @workgroup_size(64)
    fn twice(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < arrayLength(&data) { data[id.x] *= 2.0; }
    }";

/// A compute pass over one buffer.
struct Pass {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    workgroups: u32,
}

impl Pass {
    fn new(device: &wgpu::Device, entry: &str, buffer: &wgpu::Buffer) -> Self {
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("app"),
            source: wgpu::ShaderSource::Wgsl(APP.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(entry),
            layout: None,
            module: &module,
            entry_point: Some(entry),
            compilation_options: Default::default(),
            cache: None,
        });
        let entries = [wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }];
        let descriptor = wgpu::BindGroupDescriptor {
            label: Some(entry),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        };
        let group = device.create_bind_group(&descriptor);
        Self { pipeline, group, workgroups: (buffer.size() as u32 / 4).div_ceil(64) }
    }

    fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(self.workgroups, 1, 1);
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    // The app's device, opened with what the library can use beside what the app needs.
    let instance = wgpu::Instance::default();
    let adapter = instance.request_adapter(&wgpu::RequestAdapterOptions::default()).await?;
    let (required_features, required_limits) = Context::device_needs(&adapter);
    let descriptor =
        wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
    let (device, queue) = adapter.request_device(&descriptor).await?;
    let context = Context::from_wgpu(&adapter, device.clone(), queue.clone()).await?;

    // The app's buffers, as tensors.
    let buffer = |label, len: usize| {
        let usage = Usage::STORAGE | Usage::COPY_SRC;
        device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: 4 * len as u64,
            usage,
            mapped_at_creation: false,
        })
    };
    let (input, output) = (buffer("input", TOKENS * FEATURES), buffer("output", TOKENS * OUTPUTS));
    let x = Tensor::<f32>::from_buffer(&context, input.clone(), [TOKENS, FEATURES])?;
    let y = Tensor::<f32>::from_buffer(&context, output.clone(), [TOKENS, OUTPUTS])?;

    // Recorded once; run in every frame of the app.
    let packed = support::ternary(&mut support::rng(), OUTPUTS, FEATURES);
    let weights = packed.upload(&context)?;
    let mut recorded = context.encoder("bitlinear");
    bitnet::BitLinear::new(&weights).forward_into(&mut recorded, &x, &y)?;
    let bitlinear = recorded.finish();
    let (wave, twice) = (Pass::new(&device, "wave", &input), Pass::new(&device, "twice", &output));

    let mut frame =
        device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("frame") });
    wave.encode(&mut frame);
    bitlinear.encode(&mut frame);
    twice.encode(&mut frame);
    queue.submit([frame.finish()]);

    // Bit-identical on the CPU.
    let x: Vec<f32> =
        (0..TOKENS * FEATURES).map(|i| ((i * 37 % 101) as f32 - 50.0) / 32.0).collect();
    let expected: Vec<f32> = cpu::BitLinear::new(&cpu::InterleavedTernary::new(&packed))
        .forward(&x, TOKENS)?
        .into_iter()
        .map(|v| 2.0 * v)
        .collect();
    let y = y.read().await?;
    assert_eq!(y, expected);
    println!(
        "{}: {} outputs equal to the CPU's, the first {:?}",
        context.capabilities().adapter,
        y.len(),
        &y[..4]
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    pollster::block_on(run())
}
