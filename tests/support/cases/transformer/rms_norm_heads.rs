//! `src/ops/transformer/rms_norm_heads.rs`

use crate::{Case, Data, activations, floats, rng, seed};
use bitnet_wgpu::{
    reference,
    transformer::{AttentionShape, RmsNormHeads},
};
use rand::{RngExt, rngs::SmallRng};

const EPS: f32 = 1e-6;

pub fn cases() -> Vec<Case> {
    let fixed = [
        (1, 1, 1, 2),
        (3, 2, 1, 6),
        (2, 6, 3, 32),
        (0, 4, 2, 64),
        (5, 4, 2, 128),
        (1, 16, 8, 128),
        (2, 3, 1, 250),
        (2, 2, 2, 256),
        (70, 1, 1, 4),
    ];
    let fixed = (0u64..).zip(fixed).map(|(i, shape)| (rng(i), shape)).collect::<Vec<_>>();
    let random = (0..10).map(|i| {
        let mut rng = rng(1000 * seed() + i);
        let kv_heads = rng.random_range(1..4);
        let shape = (
            rng.random_range(1..9),
            kv_heads * rng.random_range(1..4),
            kv_heads,
            2 * rng.random_range(1..129),
        );
        (rng, shape)
    });
    fixed
        .into_iter()
        .chain(random.collect::<Vec<_>>())
        .map(|(mut rng, shape)| case(&mut rng, shape))
        .collect()
}

fn case(rng: &mut SmallRng, (m, heads, kv_heads, head_dim): (usize, usize, usize, usize)) -> Case {
    let shape = AttentionShape { heads, kv_heads, head_dim };
    let row = (heads + 2 * kv_heads) * head_dim;
    let qkv = activations(rng, m, row);
    let [query_gain, key_gain] = [(); 2].map(|()| floats(rng, head_dim, 2.0));
    let mut normed = qkv.clone();
    reference::rms_norm_heads(&mut normed, shape, &query_gain, &key_gain, EPS).unwrap();
    Case::exact(format!("{m} × {shape:?}"), vec![Data::F32(normed)], move |r| {
        let (qkv, query_gain, key_gain) = (
            r.upload(&qkv, [m, row])?,
            r.upload(&query_gain, [head_dim])?,
            r.upload(&key_gain, [head_dim])?,
        );
        RmsNormHeads::new(shape, &query_gain, &key_gain, EPS).forward(&mut r.encoder, &qkv)?;
        r.watch_all(&qkv);
        Ok(())
    })
}
