//! `src/ops/bitnet/relu2_gate.rs`

use crate::{Case, Data, activations, convert, floats, rng, shapes};
use bitnet_wgpu::{Float, bitnet, f16};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (mut rng, (tokens, _, features)) in shapes("relu2_gate") {
        let x = activations(&mut rng, tokens, 2 * features);
        cases.extend([case::<f32>(&x, tokens, features), case::<f16>(&x, tokens, features)]);
    }
    let x = floats(&mut rng(15), 9 * 2 * 1280, 300.0);
    cases.extend([case::<f32>(&x, 9, 1280), case::<f16>(&x, 9, 1280)]);
    cases
}

fn case<T: Float>(x: &[f32], tokens: usize, features: usize) -> Case {
    let x = convert::<T>(x);
    let y = Data::F32(bitnet::relu2_gate_cpu(&x, features).unwrap());
    Case::exact(format!("{tokens} × {features} {:?}", T::ELEMENT), vec![y], move |r| {
        let x = r.upload(&x, [tokens, 2 * features])?;
        let y = bitnet::relu2_gate(&mut r.encoder, &x)?;
        r.watch_all(&y);
        Ok(())
    })
    .of(T::ELEMENT)
}
