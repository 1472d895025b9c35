//! `src/ops/bitnet/relu2_gate.rs`

use crate::{Case, Data, activations, convert, floats, rng, shapes};
use bitnet_wgpu::{Float, bitnet, f16};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (mut rng, (tokens, _, features)) in shapes("relu2_gate") {
        let x = activations(&mut rng, tokens, 2 * features);
        cases.extend([case::<f32, f32>(&x, tokens, features), case::<f16, f32>(&x, tokens, features)]);
    }
    let x = floats(&mut rng(15), 9 * 2 * 1280, 30.0);
    cases.extend([case::<f32, f32>(&x, 9, 1280), case::<f16, f32>(&x, 9, 1280)]);
    cases.extend([case::<f32, f16>(&x, 9, 1280), case::<f16, f16>(&x, 9, 1280)]);
    cases
}

fn case<X: Float, Y: Float>(x: &[f32], tokens: usize, features: usize) -> Case {
    let x = convert::<X>(x);
    let y = Data::floats(Y::ELEMENT, &bitnet::relu2_gate_cpu(&x, features).unwrap());
    Case::exact(format!("{tokens} × {features} {:?} to {:?}", X::ELEMENT, Y::ELEMENT), vec![y], move |r| {
        let x = r.upload(&x, [tokens, 2 * features])?;
        let y = r.output::<Y>([tokens, features])?;
        bitnet::relu2_gate_into(&mut r.encoder, &x, &y)?;
        r.watch_all(&y);
        Ok(())
    })
    .of(X::ELEMENT)
    .of(Y::ELEMENT)
}
