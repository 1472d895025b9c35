//! `src/ops/transformer/rope.rs`

use super::cache::Slots;
use crate::{Case, Data, Near, U, f16_floats, rng, seed};
use bitnet_wgpu::{
    Element,
    transformer::{CachePositions, rope, rope_angles},
    tuning::TuningKey,
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let fixed = [
        Slots::one(1, 1, 2, 0, 1),
        Slots::one(3, 1, 6, 4, 1),
        Slots::one(4, 2, 14, 1, 5).capacity(7),
        // The last tokens of the first run, and all of the second, have no room.
        Slots::one(2, 2, 40, 0, 4).of(&[0, 7, 9, 3], &[1, 2]).capacity(9),
        Slots::one(8, 2, 64, 0, 1).of(&[5, 5, 0, 32, 40], &[4, 2, 3]).capacity(33),
        Slots::one(6, 3, 32, 0, 11).of(&[0, 4], &[0]).capacity(11),
        Slots::one(6, 2, 64, 3, 13).capacity(17),
        Slots::one(2, 1, 128, 0, 1).of(&[0], &[]),
    ];
    let fixed = (0u64..).zip(fixed).map(|(i, slots)| (rng(i), slots));
    let random = (0..20).map(|i| {
        let mut rng = rng(1000 * seed() + i);
        let (kv_heads, sharing) = (rng.random_range(1..4), rng.random_range(1..4));
        let slots = Slots::one(
            kv_heads * sharing,
            kv_heads,
            2 * rng.random_range(1..40),
            0,
            rng.random_range(1..9),
        );
        let capacity = rng.random_range(1..40);
        let positions: Vec<usize> =
            (0..rng.random_range(1..5)).map(|_| rng.random_range(0..capacity + 3)).collect();
        let used = Slots::some(&mut rng, positions.len());
        (rng, slots.of(&positions, &used).capacity(capacity))
    });
    let all = fixed.chain(random.collect::<Vec<_>>());
    all.flat_map(|(mut rng, slots)| {
        [Element::F32, Element::F16].map(|element| case(&mut rng, &slots, element))
    })
    .chain(by_quads())
    .collect()
}

/// By the kernel that GPUs have for prompts: heads and tokens that leave a workgroup partly empty.
fn by_quads() -> impl Iterator<Item = Case> {
    let all = [
        Slots::one(2, 2, 8, 0, 4).of(&[0, 7, 9, 3], &[1, 2]).capacity(9),
        Slots::one(4, 1, 40, 1, 17).capacity(15),
        Slots::one(6, 3, 64, 0, 11).of(&[0, 4], &[0]).capacity(15),
        Slots::one(5, 1, 128, 3, 13).capacity(17),
    ];
    (500u64..).zip(all).flat_map(|(i, slots)| {
        [Element::F32, Element::F16].map(|element| {
            let made = case(&mut rng(i), &slots, element);
            made.on(|c| c.tuning.set(TuningKey::RopeQuadsTokens, 1).unwrap())
        })
    })
}

fn case(rng: &mut SmallRng, slots: &Slots, element: Element) -> Case {
    let (name, slots) = (format!("{slots:?} {element:?}"), slots.clone());
    let (heads, kv_heads, head_dim) =
        (slots.shape.heads, slots.shape.kv_heads, slots.shape.head_dim);
    let (row, middle) = (slots.shape.row(), head_dim / 2);
    let frequencies: Vec<f32> =
        (0..middle).map(|i| 100f32.powf(-(i as f32) / middle as f32)).collect();
    let angles = rope_angles(&frequencies, slots.capacity);
    let qkv = f16_floats(rng, slots.tokens() * row, 5.0);
    let caches = [(); 2].map(|()| f16_floats(rng, slots.cache_len(), 900.0));
    // Nothing else may change.
    let mut expected = [&qkv, &caches[0], &caches[1]]
        .map(|before| before.iter().map(|&v| (Near::exactly(v), true)).collect::<Vec<_>>());
    for token in 0..slots.tokens() {
        let (slot, position) = slots.place(token);
        for (head, i) in (0..row / head_dim)
            .flat_map(|head| (0..head_dim).map(move |i| (head, i)))
            .filter(|_| position < slots.capacity)
        {
            let start = token * row + head * head_dim;
            let v = |i: usize| f64::from(qkv[start + i]);
            let turn = |j: usize| f64::from(angles[(position * middle + i % middle) * 2 + j]);
            let (a, b) =
                (v(i) * turn(0), if i < middle { -v(i + middle) } else { v(i - middle) } * turn(1));
            // Two products and their sum are rounded, or fewer.
            let turned = (Near { exact: a + b, error: 2.0 * U * (a.abs() + b.abs()) }, false);
            if head < heads {
                expected[0][start + i] = turned;
            } else if head < heads + kv_heads {
                expected[1][slots.key_at(slot, head - heads, position, i)] = turned;
            } else {
                expected[2][slots.value_at(slot, head - heads - kv_heads, position, i)] =
                    (Near::exactly(qkv[start + i]), true);
            }
        }
    }
    // Without tokens nothing is recorded, and there are no buffers to look at.
    let cache_len = if slots.tokens() == 0 { 0 } else { slots.cache_len() };
    expected[1..].iter_mut().for_each(|cache| cache.truncate(cache_len));
    let check = move |got: &[Data], _| {
        got.iter().zip(&expected).zip(["qkv", "keys", "values"]).try_for_each(
            |((got, expected), what)| {
                let copied = got
                    .to_f32()
                    .iter()
                    .zip(expected)
                    .position(|(&got, &(near, copied))| copied && f64::from(got) != near.exact);
                let near = got.check_near(expected.iter().map(|expected| expected.0));
                near.and(copied.map_or(Ok(()), |at| Err(format!("number {at} has changed"))))
                    .map_err(|e| format!("{what}: {e}"))
            },
        )
    };
    let record = move |r: &mut crate::Recorder| {
        let (cache, runs) = slots.upload(r, element, &caches)?;
        let qkv = r.upload(&qkv, [slots.tokens(), row])?;
        let angles = r.upload(&angles, [slots.capacity, middle, 2])?;
        let new = CachePositions::new(&runs, slots.run);
        rope(&qkv, new, &angles, &cache).forward(&mut r.encoder)?;
        r.watch_all(&qkv);
        cache.tensors().into_iter().for_each(|buffer| r.watch(buffer, cache_len));
        Ok(())
    };
    Case::new(name, record, check).of(element)
}
