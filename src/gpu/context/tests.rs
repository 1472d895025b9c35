//! A kernel whose Metal source does not compile.

use super::*;
use crate::{
    Tensor,
    gpu::setup::noop,
    kernel::{
        binding::{Type::F32, read_write},
        declaration::Kernel,
        source::{Part, Source},
    },
};

const WGSL: &[Part] = &[Part::new(
    "one",
    "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
    @compute @workgroup_size(WG_X) fn one(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] = 1.0; }",
)];
const MSL: &[Part] = &[Part::new(
    "one",
    "[[max_total_threads_per_threadgroup(THREADS)]] kernel void one(device float* x [[buffer(0)]],
    uint3 id [[thread_position_in_grid]]) { x[id.x] = 1.0f; }",
)];
/// The tiles differ: the grid is that of the source which runs.
static ONE: Kernel = Kernel::new(
    "one",
    &[],
    &[read_write("x", F32)],
    &[Source::wgsl(WGSL), Source::msl(MSL).tile([256, 1, 1])],
);

/// A device that runs no Metal, taken for one that does: no Metal source compiles there.
fn metal(fallback: bool) -> Context {
    let context = noop::context();
    let languages = &[ShaderLanguage::Wgsl, ShaderLanguage::Msl];
    let capabilities = Capabilities { languages, ..context.capabilities().clone() };
    context.with(Settings {
        language: ShaderLanguage::Msl,
        fallback,
        capabilities,
        ..context.settings()
    })
}

fn record(context: &Context) -> Result<[u32; 3]> {
    let x = Tensor::<f32>::zeros(context, [5000])?;
    let mut encoder = context.encoder("one");
    encoder.dispatch(&ONE, &(), &[&x], [5000, 1, 1])?;
    Ok(encoder.finish().steps[0].workgroups)
}

#[test]
fn wgsl_replaces_metal_that_does_not_compile() {
    let (context, workgroups) = (metal(true), [5000u32.div_ceil(64), 1, 1]);
    assert_eq!(record(&context).unwrap(), workgroups);
    let compiled = context.compiled_kernels();
    assert_eq!(
        (record(&context).unwrap(), context.compiled_kernels()),
        (workgroups, compiled),
        "it is compiled once"
    );
    // Who asks for the language gets it or an error, also where another has fallen back before.
    for strict in [metal(false), context.with_language(ShaderLanguage::Msl).unwrap()] {
        for _ in 0..2 {
            let refused = record(&strict);
            assert!(
                matches!(refused, Err(Error::Shader { language: ShaderLanguage::Msl, .. })),
                "{refused:?}"
            );
        }
    }
    assert_eq!(record(&context).unwrap(), workgroups);
}
