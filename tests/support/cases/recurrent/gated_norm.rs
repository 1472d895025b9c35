//! `src/ops/recurrent/gated_norm.rs`

use super::inverse_length;
use crate::{
    Case, Data, Near, Recorder,
    cases::tensor::{
        activations::{product, silu},
        unary::times,
    },
    floats, rng,
};
use bitnet_wgpu::{
    recurrent::{self, DeltaShape},
    reference,
};

const EPS: f32 = 1e-5;

pub fn cases() -> Vec<Case> {
    let shape = |key_heads, value_heads, value_dim, regrouped| DeltaShape {
        key_heads,
        value_heads,
        key_dim: 4,
        value_dim,
        tiled: regrouped,
        regrouped,
    };
    let all = [
        (1, 0, shape(1, 1, 1, false)),
        (3, 5, shape(2, 6, 10, true)),
        (2, 1, shape(3, 6, 65, false)),
        (1, 9, shape(2, 4, 256, true)),
        (0, 3, shape(1, 2, 8, false)),
    ];
    (0u64..).zip(all).map(|(i, (tokens, more, shape))| case(i, tokens, more, shape)).collect()
}

fn case(seed: u64, tokens: usize, more: usize, shape: DeltaShape) -> Case {
    let (mut rng, values, width) = (rng(seed), shape.values(), shape.value_dim);
    let stride = values + more;
    let mut x = floats(&mut rng, tokens * values, 2.0);
    // Of a head that read nothing, and of one that read little.
    x.iter_mut().take(width).for_each(|x| *x = 0.0);
    x.iter_mut().skip(width).take(width).for_each(|x| *x *= 1e-4);
    let (gain, rows) = (floats(&mut rng, width, 2.0), floats(&mut rng, tokens * stride, 9.0));
    let mut expected = vec![Near::exactly(0.0); x.len()];
    for (n, head) in x.chunks_exact(width).enumerate() {
        let (token, own) = (n / shape.value_heads, n % shape.value_heads);
        let factor = inverse_length(head, 1.0 / width as f64, EPS);
        for (i, (&x, &gain)) in head.iter().zip(&gain).enumerate() {
            let gate = rows[token * stride + more + own * width + i];
            let normed = times(times(factor, x.into(), 1.0), gain.into(), 1.0);
            expected[token * values + shape.place(own) * width + i] =
                product(normed, silu(gate.into(), 0.0, [0.0; 2]).0);
        }
    }
    let y = reference::gated_norm(shape, &x, (&gain, EPS), (&rows, stride)).unwrap();
    let record = move |r: &mut Recorder| {
        let (x, gain, gates) = (
            r.upload(&x, [tokens, values])?,
            r.upload(&gain, [width])?,
            r.upload(&rows, [tokens, stride])?,
        );
        let y = r.output([tokens, values])?;
        recurrent::gated_norm(shape, &x, (&gain, EPS), &gates).forward_into(&mut r.encoder, &y)?;
        r.watch_all(&y);
        Ok(())
    };
    let name = format!("{tokens} of {shape}, stride {stride}, regrouped {}", shape.regrouped);
    Case::near(name, expected, record).reference(move || vec![Data::F32(y.clone())])
}
