//! `src/ops/bitnet/quantize_activations.rs`

use super::{LAYOUTS, quantized, watch_quantized};
use crate::{Case, convert, rng, shapes, wild_activations};
use bitnet_wgpu::{
    bitnet::Layout,
    reference,
    tensor::{Float, f16},
};
use rand::RngExt;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, (mut rng, (tokens, _, features))) in shapes("quantize_activations").enumerate() {
        let x = wild_activations(&mut rng, tokens, features);
        for layout in LAYOUTS {
            cases.extend(Case::as_on_either(n, || case::<f32>(&x, tokens, features, layout)));
            cases.extend(Case::as_on_either(n, || case::<f16>(&x, tokens, features, layout)));
        }
    }
    // Many magnitudes: what a GPU's division alone would get wrong in the last bit.
    let mut rng = rng(13);
    let x: Vec<f32> =
        (0..20_000).map(|_| f32::from_bits(rng.random_range(0x3000_0000..0x7f00_0000))).collect();
    cases.extend([
        case::<f32>(&x, x.len(), 1, Layout::Int8).device_only(),
        case::<f32>(&x[..100], 100, 1, Layout::Int8),
    ]);
    // More than threads hold of a row.
    let x = wild_activations(&mut rng, 2, 3087);
    cases.extend(LAYOUTS.map(|layout| case::<f32>(&x, 2, 3087, layout)));
    let x = wild_activations(&mut rng, 2, 7184);
    cases.extend(LAYOUTS.map(|layout| case::<f32>(&x, 2, 7184, layout).as_on_gpus()));
    cases.extend(LAYOUTS.map(|layout| case::<f16>(&x, 2, 7184, layout).as_on_gpus()));
    // More rows than a dimension of a grid has workgroups.
    let x: Vec<f32> = (0..70_000).map(|_| rng.random_range(-3.0..3.0)).collect();
    cases.extend(LAYOUTS.map(|layout| case::<f32>(&x, x.len(), 1, layout).device_only()));
    cases
}

fn case<T: Float>(x: &[f32], tokens: usize, features: usize, layout: Layout) -> Case {
    let x = convert::<T>(x);
    let host = reference::quantize_activations(&x, tokens, features).unwrap();
    Case::exact(
        format!("{tokens} × {features} {:?}, {layout:?}", T::ELEMENT),
        quantized(&host, layout),
        move |r| {
            let x = r.upload(&x, [tokens, features])?;
            let xq = crate::quantize_as(&mut r.encoder, &x, layout)?;
            watch_quantized(r, &xq);
            Ok(())
        },
    )
    .of(T::ELEMENT)
}
