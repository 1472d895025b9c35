//! `src/ops/bitnet/clamp_gates.rs`

use crate::{Case, Data, floats, rng};
use bitnet_wgpu::{bitnet, reference};

pub fn cases() -> Vec<Case> {
    let shapes = [(1, 1), (3, 5), (0, 4), (2, 300), (70, 33), (5, 0)];
    (0u64..).zip(shapes).map(|(i, (tokens, features))| case(i, tokens, features)).collect()
}

fn case(seed: u64, tokens: usize, features: usize) -> Case {
    let mut x = floats(&mut rng(seed), tokens * 2 * features, 9.0);
    for (i, v) in x.iter_mut().enumerate() {
        match i % 11 {
            3 => *v = f32::NAN,
            5 => *v = f32::INFINITY,
            7 => *v = f32::NEG_INFINITY,
            8 => *v = 7.0,
            9 => *v = -7.0,
            _ => {}
        }
    }
    let mut expected = x.clone();
    reference::clamp_gates(&mut expected, features, 7.0);
    Case::exact(format!("{tokens} × {features}"), vec![Data::F32(expected)], move |r| {
        let x = r.upload(&x, [tokens, 2 * features])?;
        bitnet::clamp_gates(&mut r.encoder, &x, 7.0)?;
        r.watch_all(&x);
        Ok(())
    })
}
