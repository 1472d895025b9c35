//! `src/ops/bitnet/dequantize.rs`

use super::{LAYOUTS, row_scales};
use crate::{Case, Data, floats, shapes, ternary_with, wild_activations};
use bitnet_wgpu::{
    Float, Out, PackedTernary, Scales,
    bitnet::{self, HostActivations, Layout},
    f16,
};

pub fn activations() -> Vec<Case> {
    let mut cases = Vec::new();
    for (mut rng, (tokens, _, features)) in shapes("dequantize_activations") {
        let x = wild_activations(&mut rng, tokens, features);
        let host = bitnet::quantize_activations_cpu(&x, tokens, features).unwrap();
        for layout in LAYOUTS {
            cases.extend([of_activations::<f32>(&x, &host, layout), of_activations::<f16>(&x, &host, layout)]);
        }
    }
    cases
}

fn of_activations<T: Float>(x: &[f32], host: &HostActivations, layout: Layout) -> Case {
    let (x, tokens, features) = (x.to_vec(), host.tokens, host.features);
    let y = Data::floats(T::ELEMENT, &host.dequantize());
    Case::exact(format!("{tokens} × {features} {:?}, {layout:?}", T::ELEMENT), vec![y.clone(), y], move |r| {
        let x = r.upload(&x, [tokens, features])?;
        let xq = crate::quantize_as(&mut r.encoder, &x, layout)?;
        let y = bitnet::dequantize_activations::<T>(&mut r.encoder, &xq)?;
        // On top of what is there: nothing.
        let z = r.upload(&vec![T::from_f32(-0.0); tokens * features], [tokens, features])?;
        bitnet::dequantize_activations_into(&mut r.encoder, &xq, Out::add(&z))?;
        r.watch_all(&y);
        r.watch_all(&z);
        Ok(())
    })
    .of(T::ELEMENT)
}

pub fn weights() -> Vec<Case> {
    let mut cases = Vec::new();
    for (mut rng, (_, n, k)) in shapes("dequantize_weights") {
        for size in [None, Some(16), Some(48)] {
            let factors = floats(&mut rng, n * size.map_or(1, |size| k.div_ceil(size)), 2.0);
            let scales = match size {
                Some(size) => Scales::Groups { size, scales: factors },
                None => row_scales(&factors),
            };
            let w = ternary_with(&mut rng, n, k, scales);
            cases.extend([of_weights::<f32>(&w, size), of_weights::<f16>(&w, size)]);
        }
    }
    cases
}

fn of_weights<T: Float>(w: &PackedTernary, size: Option<usize>) -> Case {
    let (w, y) = (w.clone(), Data::floats(T::ELEMENT, &w.dequantize()));
    Case::exact(format!("{} × {} {:?}, groups of {size:?}", w.rows(), w.columns(), T::ELEMENT), vec![y.clone(), y], move |r| {
        let w = w.upload(r.encoder.context())?;
        let y = bitnet::dequantize_weights::<T>(&mut r.encoder, &w)?;
        // On top of what is there: nothing.
        let z = r.upload(&vec![T::from_f32(-0.0); w.rows() * w.columns()], [w.rows(), w.columns()])?;
        bitnet::dequantize_weights_into(&mut r.encoder, &w, Out::add(&z))?;
        r.watch_all(&y);
        r.watch_all(&z);
        Ok(())
    })
    .of(T::ELEMENT)
}
