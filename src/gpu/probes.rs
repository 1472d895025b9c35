//! Kernels that ask a device what it does, when a context is made.

use super::{context::Context, tensor::Tensor};
use crate::{
    error::Result,
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        source::Source,
    },
    msl, wgsl,
};

/// All of them.
pub static KERNELS: &[&Kernel] = &[&HALF_SUBNORMALS];

/// Does this device widen subnormal halves exactly? The fastest ternary dot product (`dot_half`) counts on it.
static HALF_SUBNORMALS: Kernel = Kernel::trusted(
    "half_subnormals",
    &[],
    &[read("word", U32), read_write("y", F32)],
    &[
        Source::wgsl(wgsl!["bitnet/half_subnormals"]).workgroup_size([1, 1, 1]),
        Source::msl(msl!["bitnet/half_subnormals"]).workgroup_size([1, 1, 1]),
    ],
);

/// Runs the check in every language of the context. Says as well whether the GPU's clock, where it has one, moves meanwhile.
pub async fn half_subnormals_kept(context: &Context) -> Result<(bool, bool)> {
    // Codes 1 in the low half, 2 in the high half of every field: Σ (1 + 2·2)·4^f·2^-24 over f = 0..4.
    let word = context.upload(&[0x00aa_0055u32], [1])?;
    let expected = 5.0 * (1.0 + 4.0 + 16.0 + 64.0) / 16_777_216.0;
    let (mut kept, mut clock_moves) = (true, false);
    for &language in context.capabilities().languages {
        let y = Tensor::<f32>::uninit(context, [1])?;
        let mut encoder = context.with_language(language)?.encoder("half_subnormals");
        encoder.dispatch(&HALF_SUBNORMALS, &(), &[&word, &y], [1, 1, 1])?;
        let recording = encoder.finish();
        recording.submit()?;
        kept &= y.read().await? == [expected];
        clock_moves |= recording.clock_moves().await?;
    }
    Ok((kept, clock_moves))
}
