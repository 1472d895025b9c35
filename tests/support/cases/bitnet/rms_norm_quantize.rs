//! `src/ops/bitnet/rms_norm_quantize.rs`

use super::{LAYOUTS, quantized, watch_quantized};
use crate::{Case, activations, convert, floats, rng, shapes};
use bitnet_wgpu::{
    bitnet::{self, Layout},
    reference,
    tensor::{Float, f16},
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let wide = [
        (rng(14), (3, 0, 1280)),
        (rng(15), (1, 0, 6912)),
        (rng(16), (2, 0, 1031)),
        (rng(17), (2, 0, 3087)),
    ];
    for (n, (mut rng, (tokens, _, features))) in shapes("rms_norm_quantize").chain(wide).enumerate()
    {
        let (x, gain) = (activations(&mut rng, tokens, features), floats(&mut rng, features, 2.0));
        for layout in LAYOUTS {
            cases.extend(Case::as_on_either(n, || case::<f32>(&x, tokens, &gain, 1e-5, layout)));
            cases.extend(Case::as_on_either(n, || case::<f16>(&x, tokens, &gain, 1e-6, layout)));
        }
    }
    cases
}

/// Squares are summed as integers: not a bit is left to the device.
fn case<T: Float>(x: &[f32], tokens: usize, gain: &[f32], eps: f32, layout: Layout) -> Case {
    let (x, gain, features) = (convert::<T>(x), gain.to_vec(), gain.len());
    let host = reference::rms_norm_quantize(&x, tokens, &gain, eps).unwrap();
    Case::exact(
        format!("{tokens} × {features} {:?}, {layout:?}", T::ELEMENT),
        quantized(&host, layout),
        move |r| {
            let (x, gain) = (r.upload(&x, [tokens, features])?, r.upload(&gain, [features])?);
            let xq = bitnet::ActivationQuantizer::int8()
                .layout(layout)
                .norm((&gain, eps))
                .quantize(&mut r.encoder, &x)?;
            watch_quantized(r, &xq);
            Ok(())
        },
    )
    .of(T::ELEMENT)
}
