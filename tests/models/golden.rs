//! A real model against transformers: codes, accumulators and outputs equal, on the CPU and on the
//! GPU in every layout. `BITNET_MODEL_DIR` names another model directory, laid out as
//! assets/tales-22m.

use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Context, Recording, Tensor,
    bitnet::{self, Layout, QuantizedActivations},
    cpu::HostActivations,
    formats::Checkpoint,
    internals::{CheckpointInternals as _, KernelInternals as _, SafeTensors},
    reference,
};
use support::{block_on, contexts, real_model};

/// One linear layer's recorded input and results.
#[derive(Clone)]
struct Golden {
    name: String,
    tokens: usize,
    x: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    y: Vec<f32>,
}

fn goldens() -> Vec<Golden> {
    let file = SafeTensors::open(real_model().join("golden/bitlinear.safetensors")).unwrap();
    let read = |name: String| {
        let tensor = file.tensor(&name).unwrap();
        match tensor.dtype {
            safetensors::Dtype::I8 => tensor.bytes.iter().map(|&b| f32::from(b as i8)).collect(),
            // Sums are below 2^24.
            safetensors::Dtype::I32 => tensor
                .bytes
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32)
                .collect(),
            _ => tensor.to_f32().unwrap(),
        }
    };
    let names = file.names();
    let layers = names.iter().filter_map(|name| name.strip_suffix(".acc"));
    let golden = |name: &str| Golden {
        name: format!("model.{name}"),
        tokens: file.tensor(&format!("{name}.x")).unwrap().shape[0],
        x: read(format!("{name}.x")),
        codes: read(format!("{name}.xq")).into_iter().map(|v| v as i8).collect(),
        scales: read(format!("{name}.xscale")),
        sums: read(format!("{name}.acc")).into_iter().map(|v| v as i32).collect(),
        y: read(format!("{name}.y")),
    };
    let goldens: Vec<_> = layers.map(golden).collect();
    assert!(!goldens.is_empty(), "no goldens");
    goldens
}

impl Golden {
    /// The first token alone: a GEMV, where all of them are a GEMM.
    fn first_token(&self) -> Self {
        let mut one = Self { tokens: 1, ..self.clone() };
        one.x.truncate(self.x.len() / self.tokens);
        one.codes.truncate(self.codes.len() / self.tokens);
        one.scales.truncate(1);
        one.sums.truncate(self.sums.len() / self.tokens);
        one.y.truncate(self.y.len() / self.tokens);
        one
    }
}

fn compare(golden: &Golden, whose: &str, xq: &HostActivations, sums: &[i32], y: &[f32]) {
    let name = &golden.name;
    assert!(xq.codes == golden.codes, "{name}: codes of {whose}");
    assert!(xq.scales == golden.scales, "{name}: scales of {whose}");
    assert!(sums == golden.sums, "{name}: sums of {whose}");
    assert!(y == golden.y, "{name}: outputs of {whose}");
}

/// Codes, sums and outputs.
type Results = (HostActivations, Vec<i32>, Vec<f32>);

fn on_gpu(
    context: &Context,
    layout: Layout,
    golden: &Golden,
    w: &bitnet_wgpu::weights::PackedTernary,
) -> Results {
    let (recording, xq, sums, y) = record(context, layout, golden, w);
    let _ = recording.submit().unwrap();
    let sums = block_on(sums.read()).unwrap().into_iter().map(|sum| sum as i32).collect();
    (block_on(xq.read()).unwrap(), sums, block_on(y.read()).unwrap())
}

fn record(
    context: &Context,
    layout: Layout,
    golden: &Golden,
    w: &bitnet_wgpu::weights::PackedTernary,
) -> (Recording, QuantizedActivations, Tensor<f32>, Tensor<f32>) {
    let mut encoder = context.encoder("golden");
    let x = context.upload(&golden.x, [golden.tokens, w.columns()]).unwrap();
    let w = w.upload(context).unwrap();
    let xq = support::quantize_as(&mut encoder, &x, layout).unwrap();
    let sums = bitnet::accumulators(&xq, &w).forward(&mut encoder).unwrap();
    let y = BitLinear::new(&w).forward(&mut encoder, &xq).unwrap();
    (encoder.finish(), xq, sums, y)
}

/// By Metal sources, executed on the CPU: sums and outputs.
#[cfg(target_os = "linux")]
fn by_metal(golden: &Golden, w: &bitnet_wgpu::weights::PackedTernary) -> (Vec<i32>, Vec<f32>) {
    use bitnet_wgpu::gpu::Bind;
    use support::{
        emulated,
        machine::{Memory, Text},
    };
    // Kernels for other GPUs and for software adapters have no Metal source.
    let context = support::context().restricted(|c| (c.software, c.apple) = (false, true));
    let (recording, _xq, sums, y) = record(&context, Layout::F16, golden, w);
    let mut memory = Memory::new();
    for dispatch in recording.dispatches() {
        assert!(
            dispatch.kernel().source(bitnet_wgpu::kernel::ShaderLanguage::Msl).is_some(),
            "{} has no Metal text",
            dispatch.kernel().name
        );
        for (binding, id) in dispatch.buffers().into_iter().enumerate() {
            memory.entry(id).or_insert_with(|| block_on(dispatch.read(binding)).unwrap());
        }
        emulated::run(&dispatch, &mut memory, Text::Metal, msl_host::Order::Forward, 65_535)
            .unwrap();
    }
    let floats = |tensor: &Tensor<f32>| {
        bytemuck::pod_collect_to_vec::<u8, f32>(&memory[&tensor.bound().id()])[..tensor.len()]
            .to_vec()
    };
    (floats(&sums).into_iter().map(|sum| sum as i32).collect(), floats(&y))
}

#[test]
fn every_linear_equals_transformers() {
    let checkpoint = Checkpoint::open(real_model()).unwrap();
    for golden in goldens().into_iter().flat_map(|golden| [golden.first_token(), golden]) {
        let rows = golden.y.len() / golden.tokens;
        let w = checkpoint.ternary_with_rows(&golden.name, rows).unwrap();
        let xq = reference::quantize_activations(&golden.x, golden.tokens, w.columns()).unwrap();
        let sums = reference::accumulators(&xq, &w).unwrap();
        compare(&golden, "the CPU", &xq, &sums, &reference::bitlinear_quantized(&xq, &w).unwrap());
        for context in contexts() {
            for layout in [Layout::Int8, Layout::F16] {
                for f16_subnormals in [true, false] {
                    let context = context.restricted(|c| c.f16_subnormals &= f16_subnormals);
                    let (xq, sums, y) = on_gpu(&context, layout, &golden, &w);
                    compare(
                        &golden,
                        &format!("{layout:?}, {:?}", context.capabilities()),
                        &xq,
                        &sums,
                        &y,
                    );
                }
            }
        }
    }
}

/// A layer's seven matrices.
#[test]
#[cfg(target_os = "linux")]
fn a_layer_in_metal_equals_transformers() {
    let checkpoint = Checkpoint::open(real_model()).unwrap();
    for golden in goldens().into_iter().take(7).flat_map(|golden| [golden.first_token(), golden]) {
        let w = checkpoint.ternary_with_rows(&golden.name, golden.y.len() / golden.tokens).unwrap();
        let (sums, y) = by_metal(&golden, &w);
        assert!(sums == golden.sums && y == golden.y, "{}, {} tokens", golden.name, golden.tokens);
    }
}
