//! Kernels that ask a device what it does, when a context is made.

use crate::{
    error::Result,
    gpu::{context::Context, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        source::Source,
    },
    msl, wgsl,
};

/// All of them.
pub static KERNELS: &[&Kernel] = &[&HALF_SUBNORMALS, &FUSED_MULTIPLY_ADD];

/// Probes whether this device widens subnormal f16 exactly. The fastest ternary dot product
/// (`dot_half`) counts on it.
static HALF_SUBNORMALS: Kernel = Kernel::trusted(
    "half_subnormals",
    &[],
    &[read("word", U32), read_write("y", F32)],
    &[
        Source::wgsl(wgsl!["bitnet/half_subnormals"]).workgroup_size([1, 1, 1]),
        Source::msl(msl!["bitnet/half_subnormals"]).workgroup_size([1, 1, 1]),
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

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct Probed {
    pub half_subnormals: bool,
    pub fused_multiply_add: bool,
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
    let mut found = Probed { half_subnormals: true, fused_multiply_add: true, clock_moves: false };
    for &language in context.capabilities().languages {
        let (y, z) =
            (Tensor::<f32>::uninit(context, [1])?, Tensor::<f32>::uninit(context, [PRODUCTS])?);
        let mut encoder = context.with_language(language)?.encoder("probes");
        encoder.dispatch(&HALF_SUBNORMALS, &(), &[&word, &y], [1, 1, 1])?;
        encoder.dispatch(&FUSED_MULTIPLY_ADD, &(), &[&factor, &z], [PRODUCTS, 1, 1])?;
        let recording = encoder.finish();
        recording.submit()?;
        found.half_subnormals &= y.read().await? == [sum];
        found.fused_multiply_add &= z.read().await? == lost;
        found.clock_moves |= recording.clock_moves().await?;
    }
    Ok(found)
}
