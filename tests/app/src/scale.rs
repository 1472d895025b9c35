//! A kernel of the app's own, in WGSL and in Metal.

use bitnet::{
    Context, Kernel, Result, Tensor,
    kernel::{Params as _, Source, Type::*, read, read_write},
    msl, params, wgsl,
};

params! { struct Params { length: u32, factor: f32 } }

static SCALE: Kernel = Kernel::new(
    "scale",
    Params::FIELDS,
    &[read("x", Float("X")), read_write("y", F32)],
    &[
        Source::wgsl(wgsl!["scale"]),
        // SAFETY: it compares its index with the length of the buffers.
        unsafe { Source::msl_unchecked(msl!["scale"]) },
    ],
);

/// Runs it in the language that the device takes.
pub async fn scale(context: &Context) -> Result<()> {
    SCALE.check()?;
    let x = context.upload(&[1.0f32, 2.0, 3.0], [3])?;
    let y = Tensor::<f32>::uninit(context, [3])?;
    let mut encoder = context.encoder("scale");
    encoder.dispatch(&SCALE, &Params { length: 3, factor: 1.5 }, &[&x, &y], [3, 1, 1])?;
    encoder.submit()?;
    assert_eq!(y.read().await?, [1.5, 3.0, 4.5]);
    Ok(())
}
