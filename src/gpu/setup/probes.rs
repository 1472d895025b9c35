//! Kernels that ask a device what it does, when a context is made.

use crate::{
    error::Result,
    gpu::{context::Context, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        needs::TensorCore,
        source::{Part, Source, glsl, spirv},
    },
    msl, wgsl,
};

/// All of them.
pub static KERNELS: &[&Kernel] = &[&F16_SUBNORMALS, &FUSED_MULTIPLY_ADD, &PLACES_16, &PLACES_8];

/// Probes whether this device widens subnormal f16 exactly. The fastest ternary dot product
/// (`dot_f16`) counts on it.
static F16_SUBNORMALS: Kernel = Kernel::trusted(
    "f16_subnormals",
    &[],
    &[read("word", U32), read_write("y", F32)],
    &[
        Source::wgsl(wgsl!["bitnet/f16_subnormals"]).workgroup_size([1, 1, 1]),
        Source::msl(msl!["bitnet/f16_subnormals"]).workgroup_size([1, 1, 1]),
    ],
);

/// The products whose rounding [`FUSED_MULTIPLY_ADD`] shows.
const PRODUCTS: usize = 64;

/// Probes whether `fma` rounds once. The fastest exact quotient (`shared/exact`) counts on it.
static FUSED_MULTIPLY_ADD: Kernel = Kernel::trusted(
    "fused_multiply_add",
    &[],
    &[read("factor", F32), read_write("y", F32)],
    &[Source::wgsl(wgsl!["measure/fused_multiply_add"]).workgroup_size([PRODUCTS as u32, 1, 1])],
);

/// Shows which elements of a matrix each lane has. No specification says it, and kernels in SPIR-V that
/// scale a matrix row by row count on it.
macro_rules! places {
    ($name:literal, $core:expr) => {
        Kernel::trusted(
            $name,
            &[],
            &[read_write("y", U32)],
            &[Source::spirv(PLACES_PARTS, spirv!($name, ""))
                .workgroup_size([$core.lanes, 1, 1])
                .workgroup_bytes(6 * $core.size * $core.size)],
        )
        .entry("matrix_places")
        .tensor_core($core)
    };
}

const PLACES_PARTS: &[Part] = glsl!["shared/prelude", "measure/matrix_places"];
const CORE_16: TensorCore = TensorCore::new(16, 32);
const CORE_8: TensorCore = TensorCore::new(8, 8);
static PLACES_16: Kernel = places!("matrix_places_16", CORE_16);
static PLACES_8: Kernel = places!("matrix_places_8", CORE_8);

/// What [`PLACES_16`] or [`PLACES_8`] shows where kernels in SPIR-V may work with elements: row · size +
/// column, of an accumulator and of a left operand, by element and lane.
fn expected_places(core: TensorCore) -> Vec<u32> {
    let place = |element: u32, lane: u32| match core {
        // As `mma.sync` of NVIDIA has it.
        CORE_16 => {
            let row = lane / 4 + element / 4 * 8;
            let column = lane % 4 * 2 + element % 2 + element / 2 % 2 * 8;
            row * 16 + column
        }
        // lavapipe: a column a lane.
        _ => element * core.size + lane,
    };
    let elements = core.size * core.size / core.lanes;
    let one = (0..elements)
        .flat_map(|element| (0..core.lanes).map(move |lane| place(element, lane)))
        .collect::<Vec<_>>();
    one.repeat(2)
}

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct Probed {
    pub f16_subnormals: bool,
    pub fused_multiply_add: bool,
    /// Whether lanes have the elements of a matrix that kernels in SPIR-V expect.
    pub matrix_elements: bool,
    /// Whether the GPU's clock, where it has one, moves meanwhile.
    pub clock_moves: bool,
}

/// Runs the checks in every language of the context.
pub async fn probe(context: &Context) -> Result<Probed> {
    // Codes 1 in the low half, 2 in the high half of every field: Σ (1 + 2·2)·4^f·2^-24 over f =
    // 0..4.
    let word = context.upload(&[0x00aa_0055u32], [1])?;
    let sum = 5.0 * (1.0 + 4.0 + 16.0 + 64.0) / 16_777_216.0;
    // Numbers of 24 bits whose squares have more, in [1, 2): what rounding takes off a square is
    // not 0.
    let factors: Vec<f32> =
        (0..PRODUCTS as u32).map(|i| f32::from_bits(0x3f80_0001 + 2 * (i * 65_521))).collect();
    let lost: Vec<f32> = factors.iter().map(|&v| v.mul_add(v, -(v * v))).collect();
    let factor = context.upload(&factors, [PRODUCTS])?;
    let mut found = Probed {
        f16_subnormals: true,
        fused_multiply_add: true,
        matrix_elements: matrix_elements(context).await?,
        clock_moves: false,
    };
    for &language in context.capabilities().languages {
        let (y, z) =
            (Tensor::<f32>::uninit(context, [1])?, Tensor::<f32>::uninit(context, [PRODUCTS])?);
        let mut encoder = context.with_language(language)?.encoder("probes");
        encoder.dispatch(&F16_SUBNORMALS, &(), &[&word, &y], [1, 1, 1])?;
        encoder.dispatch(&FUSED_MULTIPLY_ADD, &(), &[&factor, &z], [PRODUCTS, 1, 1])?;
        let recording = encoder.finish();
        recording.submit()?;
        found.f16_subnormals &= y.read().await? == [sum];
        found.fused_multiply_add &= z.read().await? == lost;
        found.clock_moves |= recording.clock_moves().await?;
    }
    Ok(found)
}

/// Asks a device that runs SPIR-V which elements its lanes have.
async fn matrix_elements(context: &Context) -> Result<bool> {
    let cores = &context.capabilities().tensor_cores;
    let spirv = context.device().features().contains(wgpu::Features::PASSTHROUGH_SHADERS);
    let known = [(CORE_16, &PLACES_16), (CORE_8, &PLACES_8)];
    let core = known.into_iter().find(|(core, _)| spirv && cores.contains(core));
    let Some((core, kernel)) = core else { return Ok(false) };
    let expected = expected_places(core);
    let y = Tensor::<u32>::uninit(context, [expected.len()])?;
    let mut encoder = context.encoder("places");
    // A driver that refuses the kernel has no such elements.
    if let Err(error) = encoder.dispatch(kernel, &(), &[&y], [1, 1, 1]) {
        log::warn!("elements of matrices are not used: {error}");
        return Ok(false);
    }
    encoder.finish().submit()?;
    Ok(y.read().await? == expected)
}
