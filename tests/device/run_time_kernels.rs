//! Kernels from sources that are made at run time.

use bitnet_wgpu::{
    Error, ErrorKind, Kernel, Tensor,
    kernel::{Params as _, Source, Type::*, read, read_write},
    params,
};
use std::sync::Arc;
use support::{block_on, context};

params! { struct Params { length: u32, factor: u32 } }

/// The declaration; its own source is never compiled.
static TIMES: Kernel = Kernel::new(
    "times",
    Params::FIELDS,
    &[read("x", U32), read_write("y", U32)],
    &[Source::wgsl(&[])],
);

const WGSL: &str = "struct Params { length: u32, factor: u32 }
    var<immediate> params: Params;
    @group(0) @binding(0) var<storage, read> x: array<u32>;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;
    @compute @workgroup_size(WG_X, WG_Y, WG_Z)
    fn times(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < params.length { y[id.x] = x[id.x] * params.factor; }
    }";

#[test]
fn run_time_wgsl_runs_and_is_compiled_once() {
    let x = context().upload(&[1u32, 2, 3], [3]).unwrap();
    let mut compiled = Vec::new();
    for _ in 0..2 {
        let times = Arc::new(TIMES.with_wgsl(WGSL));
        times.check().unwrap();
        let y = Tensor::<u32>::zeros(context(), [3]).unwrap();
        let mut encoder = context().encoder("times");
        let params = Params { length: 3, factor: 5 };
        encoder.dispatch(&times, &params, &[&x, &y], [3, 1, 1]).unwrap();
        encoder.submit().unwrap();
        assert_eq!(block_on(y.read()).unwrap(), [5, 10, 15]);
        compiled.push(context().compiled_kernels());
    }
    assert_eq!(compiled[0], compiled[1]);
}

#[test]
fn run_time_wgsl_is_compared_with_the_declaration() {
    let swapped = WGSL.replace("length: u32, factor: u32", "factor: u32, length: u32");
    let swapped = Arc::new(TIMES.with_wgsl(swapped));
    assert!(matches!(swapped.check(), Err(Error::Shader { kernel: "times", .. })));
    let x = context().upload(&[1u32], [1]).unwrap();
    let y = Tensor::<u32>::zeros(context(), [1]).unwrap();
    let params = Params { length: 1, factor: 1 };
    let refused = context().encoder("swapped").dispatch(&swapped, &params, &[&x, &y], [1, 1, 1]);
    assert!(matches!(refused, Err(Error::Shader { kernel: "times", .. })), "{refused:?}");
}

#[test]
fn kernels_are_dispatched_by_value_or_shared() {
    let x = context().upload(&[1u32, 2, 3], [3]).unwrap();
    let y = Tensor::<u32>::zeros(context(), [3]).unwrap();
    let (params, shared) = (Params { length: 3, factor: 2 }, Arc::new(TIMES.with_wgsl(WGSL)));
    let mut encoder = context().encoder("times");
    encoder.dispatch(TIMES.with_wgsl(WGSL), &params, &[&x, &y], [3, 1, 1]).unwrap();
    encoder.dispatch(shared, &params, &[&y, &x], [3, 1, 1]).unwrap();
    encoder.submit().unwrap();
    assert_eq!(block_on(x.read()).unwrap(), [4, 8, 12]);
}

#[test]
fn shader_errors_have_the_lines_of_the_caller() {
    let broken = TIMES.with_wgsl(WGSL.replace("x[id.x] *", "x[id.x] * no_such *"));
    let error = broken.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shader);
    let (message, place) = (error.to_string(), "times:7:55: no definition in scope for identifier");
    assert!(message.contains(place), "{message}");
}

/// On the emulator, and on the device where it runs Metal.
#[test]
#[cfg(target_os = "linux")]
fn run_time_metal_gives_the_results_of_wgsl() {
    use bitnet_wgpu::internals::KernelInternals as _;
    use bytemuck::cast_slice;
    use msl_host::{Order, Program};

    const METAL: &str = "struct Params { uint length; uint factor; };
        [[max_total_threads_per_threadgroup(THREADS)]]
        kernel void times(
            constant Params& params [[buffer(0)]],
            device const uint* x [[buffer(1)]],
            device uint* y [[buffer(2)]],
            uint id [[thread_position_in_grid]])
        {
            if (id < params.length) y[id] = x[id] * params.factor;
        }";
    // SAFETY: it compares its index with the length of the buffers that are bound below.
    let times = Arc::new(unsafe { TIMES.with_msl(format!("using namespace metal;\n{METAL}")) });
    times.check().unwrap();
    let [variant] = &times.variants()[..] else { panic!("it has one source and no alias") };
    let text = times.joined_source(variant);
    let program = Program::compile(&text, times.entry, times.sources()[0].workgroup_size).unwrap();
    let x = [1u32, 2, 3];
    let mut buffers =
        [&[3u32, 5][..], &x, &[0; 3]].map(|words| cast_slice(words).to_vec()).to_vec();
    program.dispatch(&mut buffers, [1, 1, 1], Order::Reverse).unwrap();
    assert_eq!(cast_slice::<u8, u32>(&buffers[2]), [5, 10, 15]);

    let x = context().upload(&x, [3]).unwrap();
    let y = Tensor::<u32>::zeros(context(), [3]).unwrap();
    let mut encoder = context().encoder("times");
    let params = Params { length: 3, factor: 5 };
    match encoder.dispatch(&times, &params, &[&x, &y], [3, 1, 1]) {
        Err(Error::DeviceUnsupported { .. }) => {}
        recorded => {
            recorded.unwrap();
            encoder.submit().unwrap();
            assert_eq!(block_on(y.read()).unwrap(), [5, 10, 15]);
        }
    }
}
