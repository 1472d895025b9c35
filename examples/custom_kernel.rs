//! A kernel of your own, declared once and dispatched together with the crate's kernels.
//! `cargo run --release --example custom_kernel`

use bitnet_wgpu::{
    Context, Kernel, Result, Tensor, bitnet,
    kernel::{Params as _, Part, ShaderLanguage, Source, Type::*, read, read_write},
    params,
};

params! { struct Params { length: u32, factor: f32 } }

// In your own crate, put the source into wgsl/silu.wgsl and write `wgsl!["silu"]` here.
const WGSL: &str = "struct Params { length: u32, factor: f32 }
    var<immediate> params: Params;
    @group(0) @binding(0) var<storage, read> x: array<X>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;

    @compute @workgroup_size(WG_X, WG_Y, WG_Z)
    fn silu(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x >= params.length { return; }
        let v = f32(x[id.x]);
        y[id.x] = params.factor * v / (1.0 + exp(-v));
    }";

static SILU: Kernel = Kernel::new(
    "silu",
    Params::FIELDS,
    // `X` is f32 or f16, the element type of the tensor that is bound.
    &[read("x", Float("X")), read_write("y", F32)],
    // Workgroups of 64 threads, each of which makes one output, unless `workgroup_size` and `tile`
    // say otherwise.
    &[Source::wgsl(&[Part::new("silu", WGSL)])],
);

/// The function in Metal, for Apple's GPUs: the parameters are buffer 0.
const METAL: &str = "
    struct Params { uint length; float factor; };
    [[max_total_threads_per_threadgroup(THREADS)]]
    kernel void silu(
        constant Params& params [[buffer(0)]],
        device const X* x [[buffer(1)]],
        device float* y [[buffer(2)]],
        uint id [[thread_position_in_grid]])
    {
        if (id >= params.length) return;
        float v = float(x[id]);
        y[id] = params.factor * v / (1.0f + metal::exp(-v));
    }";

fn main() -> Result<()> {
    // Do this in one of your tests: it compares the source with the declaration.
    SILU.check()?;
    let context = pollster::block_on(Context::new())?;
    let x = context.upload(&[-2.0f32, -1.0, 0.0, 1.0, 2.0], [5])?;
    let y = Tensor::<f32>::uninit(&context, [5])?;
    let mut encoder = context.encoder("custom");
    encoder.dispatch(&SILU, &Params { length: 5, factor: 2.0 }, &[&x, &y], [5, 1, 1])?;
    // The crate's own kernels can use the result in the same submission.
    let quantized = bitnet::ActivationQuantizer::int8().quantize(&mut encoder, &y)?;
    encoder.submit()?.wait()?;
    println!("2 · silu = {:?}", pollster::block_on(y.read())?);
    println!("as int8: {:?}", pollster::block_on(quantized.read())?.codes);

    // A source that is made at run time takes the place of the one in the declaration.
    let relu = SILU.with_wgsl(WGSL.replace("v / (1.0 + exp(-v))", "max(v, 0.0)"));
    relu.check()?;
    // SAFETY: it ends threads beyond `length`, which is that of both tensors. Metal reaches the
    // driver without bounds checks.
    let metal = unsafe { SILU.with_msl(METAL) };
    metal.check()?;
    let on_metal = context.capabilities().languages.contains(&ShaderLanguage::Msl);
    for kernel in [relu, metal].into_iter().take(1 + usize::from(on_metal)) {
        let mut encoder = context.encoder("run time");
        encoder.dispatch(kernel, &Params { length: 5, factor: 1.0 }, &[&x, &y], [5, 1, 1])?;
        encoder.submit()?.wait()?;
        println!("from a run-time source: {:?}", pollster::block_on(y.read())?);
    }
    Ok(())
}
