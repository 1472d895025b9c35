//! Batch invariance of `src/ops/transformer/attention.rs` and `attention_tensor_cores.rs`.

use super::cache::Slots;
use crate::{Case, Compared, Data, f16_floats, rng};
use bitnet_wgpu::{
    Element, Result,
    transformer::{CachePositions, KvCache, attention, rope, rope_angles},
};
use rand::rngs::SmallRng;

/// Batch-invariant: a prompt in one chunk and in several, which other kernels take, and
/// tokens that rotate in the attention's dispatch.
pub fn cases() -> Vec<Case> {
    let shapes = [
        // Heads, key heads, width, tokens before, tokens; chunks.
        (Slots::one(4, 2, 40, 60, 11), vec![1, 3, 7]),
        (Slots::one(4, 1, 64, 0, 130), vec![129, 1]),
        (Slots::one(3, 3, 14, 126, 4), vec![1, 1, 1, 1]),
        (Slots::one(8, 1, 128, 62, 3), vec![1, 2]),
        (Slots::one(2, 1, 256, 63, 2), vec![1, 1]),
        // More heads share a key than a workgroup takes.
        (Slots::one(9, 1, 32, 70, 2), vec![1, 1]),
        (Slots::one(4, 2, 40, 60, 11).window(6), vec![1, 3, 7]),
        (Slots::one(8, 1, 128, 190, 3).window(65), vec![1, 2]),
    ];
    // Rows enough for the kernel for many, and chunks that are too small for it.
    let many = [
        (Slots::one(32, 8, 16, 40, 66), vec![65, 1]),
        (Slots::one(128, 8, 20, 0, 16), vec![1, 12, 3]),
        (Slots::one(28, 4, 100, 61, 74), vec![1, 30, 43]),
        (Slots::one(28, 4, 100, 61, 74).window(50), vec![1, 30, 43]),
        (Slots::one(32, 8, 16, 90, 66).window(3), vec![65, 1]),
        (Slots::one(52, 52, 128, 60, 33), vec![30, 3]),
        (Slots::one(208, 52, 254, 120, 9), vec![1, 8]),
        (Slots::one(32, 16, 256, 0, 62), vec![2, 15, 45]),
        (Slots::one(128, 128, 130, 0, 9), vec![1, 8]),
        // Sequences that see more than others, and one that has nothing.
        (Slots::one(4, 2, 6, 0, 170).of(&[3, 64, 0, 130], &[3, 0, 2]), vec![1, 150, 19]),
    ];
    for (Slots { shape, used, run, .. }, _) in &many {
        let tiles = (run * shape.heads / shape.kv_heads).div_ceil(8) * shape.kv_heads * used.len();
        assert!(tiles >= 256, "{shape:?}, {run} tokens: too few for the kernel for many");
    }
    let case = |(i, (slots, chunks)): (u64, (Slots, Vec<usize>))| {
        let of = |element| chunked(false, &mut rng(700 + i), &slots, &chunks, element);
        [of(Element::F32), of(Element::F16), of(Element::F32).on(|c| c.device_barriers = false)]
    };
    (0..).zip(shapes.into_iter().chain(many)).flat_map(case).collect()
}

/// Bit-identical for a prompt on tensor cores in one chunk, in chunks that they take, and among
/// others.
pub fn f16_cases() -> Vec<Case> {
    let shapes = [
        (Slots::one(4, 2, 64, 0, 200), vec![64, 71, 65]),
        (Slots::one(2, 1, 32, 37, 131), vec![66, 65]),
        (Slots::one(4, 2, 32, 37, 200).window(50), vec![66, 70, 64]),
        (Slots::one(3, 1, 96, 0, 129), vec![65, 64]),
        (Slots::one(3, 1, 128, 0, 129), vec![65, 64]),
        (Slots::one(1, 1, 64, 0, 128), vec![64, 64]),
        (Slots::one(1, 1, 128, 0, 129), vec![64, 65]),
        (Slots::one(2, 1, 64, 0, 128).of(&[3, 64, 0], &[2, 0]), vec![64, 64]),
        // Larger tiles for all than for one.
        (
            Slots::one(16, 16, 128, 0, 128).of(&[0; 10], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            vec![64, 64],
        ),
    ];
    let case = |(i, (slots, chunks)): (u64, (Slots, Vec<usize>))| {
        let of = || chunked(true, &mut rng(850 + i), &slots, &chunks, Element::F16);
        [of(), of().on(|c| c.matrix_elements = false)]
    };
    (0..).zip(shapes).flat_map(case).collect()
}

/// The new tokens of all slots at once, and each slot's by itself, a chunk after another.
struct Chunked {
    /// Whether attention is in f16, which rotates in its own dispatch.
    f16: bool,
    slots: Slots,
    chunks: Vec<usize>,
    qkv: Vec<f32>,
    angles: Vec<f32>,
}

fn chunked(
    f16: bool,
    rng: &mut SmallRng,
    slots: &Slots,
    chunks: &[usize],
    element: Element,
) -> Case {
    let shape = slots.shape;
    assert_eq!(chunks.iter().sum::<usize>(), slots.run);
    // A position that nobody comes to.
    let slots = slots.clone().capacity(slots.capacity + 1);
    let frequencies: Vec<f32> =
        (0..shape.head_dim / 2).map(|i| 100f32.powf(-(i as f32) / 7.0)).collect();
    let angles = rope_angles(&frequencies, slots.capacity);
    let qkv = f16_floats(rng, slots.tokens() * shape.row(), 1.5);
    let caches = contents(rng, &slots);
    // Longer than it need take on a CPU.
    let large = slots.tokens() * slots.capacity * shape.heads * shape.head_dim > 4_000_000;
    let name = format!("{slots:?} {element:?} in chunks of {chunks:?}");
    let own = Chunked { f16, slots, chunks: chunks.to_vec(), qkv, angles };
    let record = move |r: &mut crate::Recorder| {
        for whole in [true, false] {
            let (cache, runs) = own.slots.upload(r, element, &caches)?;
            if whole {
                own.at_once(r, &cache, &CachePositions::new(&runs, own.slots.run))?;
            } else {
                own.in_chunks(r, &cache)?;
            }
            cache.tensors().into_iter().for_each(|buffer| r.watch(buffer, own.slots.cache_len()));
        }
        Ok(())
    };
    let case = Case::new(name, record, |got, _| check(got)).of(element);
    if large { case.device_only() } else { case }
}

/// Keys and values. What pads a head is 0; positions whose tokens are yet to come are not seen
/// before.
fn contents(rng: &mut SmallRng, slots: &Slots) -> [Vec<f32>; 2] {
    let shape = slots.shape;
    let mut caches = [(); 2].map(|()| f16_floats(rng, slots.cache_len(), 1.5));
    for (slot, head) in (0..slots.positions.len())
        .flat_map(|slot| (0..shape.kv_heads).map(move |head| (slot, head)))
    {
        for position in 0..slots.capacity {
            let first = if position < slots.positions[slot] { shape.head_dim } else { 0 };
            for d in first..slots.padded() {
                let v = if d < shape.head_dim { f32::NAN } else { 0.0 };
                caches[0][slots.key_at(slot, head, position, d)] = v;
                caches[1][slots.value_at(slot, head, position, d)] = v;
            }
        }
    }
    caches
}

impl Chunked {
    fn upload_angles(&self, r: &mut crate::Recorder) -> Result<bitnet_wgpu::Tensor<f32>> {
        r.upload(&self.angles, [self.slots.capacity, self.slots.shape.head_dim / 2, 2])
    }

    fn at_once(
        &self,
        r: &mut crate::Recorder,
        cache: &KvCache,
        positions: &CachePositions<'_>,
    ) -> Result<()> {
        let (slots, shape) = (&self.slots, self.slots.shape);
        let angles = self.upload_angles(r)?;
        let rows = r.upload(&self.qkv, [slots.tokens(), shape.row()])?;
        let y = r.output::<f32>([slots.tokens(), shape.heads * shape.head_dim])?;
        let op = attention(&rows, *positions, cache).max_len(slots.capacity);
        if self.f16 {
            op.rope(&angles).f16().forward_into(&mut r.encoder, &y)?;
        } else {
            rope(&rows, *positions, &angles, cache).forward(&mut r.encoder)?;
            op.forward_into(&mut r.encoder, &y)?;
        }
        r.watch_all(&y);
        Ok(())
    }

    fn in_chunks(&self, r: &mut crate::Recorder, cache: &KvCache) -> Result<()> {
        let (slots, shape) = (&self.slots, self.slots.shape);
        let angles = self.upload_angles(r)?;
        let mut done = 0;
        for &slot in &slots.used {
            let mut past = slots.positions[slot];
            for &chunk in &self.chunks {
                let runs = r.upload(&[slot as u32, past as u32], [1, 2])?;
                let rows = &self.qkv[done * shape.row()..][..chunk * shape.row()];
                let rows = r.upload(rows, [chunk, shape.row()])?;
                let y = r.output::<f32>([chunk, shape.heads * shape.head_dim])?;
                (done, past) = (done + chunk, past + chunk);
                let op = attention(&rows, CachePositions::new(&runs, chunk), cache);
                let op = op.rope(&angles).max_len(past);
                let op = if self.f16 { op.f16() } else { op };
                op.forward_into(&mut r.encoder, &y)?;
                r.watch_all(&y);
            }
        }
        Ok(())
    }
}

fn check(got: &[Data]) -> std::result::Result<(), String> {
    let [y, keys, values, chunks @ .., chunk_keys, chunk_values] = got else {
        panic!("two attentions")
    };
    let chunks: Vec<f32> = chunks.iter().flat_map(Data::to_f32).collect();
    let whole = y.to_f32();
    Compared::BITS.note();
    if let Some(at) = (0..whole.len())
        .find(|&at| whole[at].to_bits() != chunks[at].to_bits() || !whole[at].is_finite())
    {
        let (whole, chunk) = (whole[at], chunks[at]);
        return Err(format!("number {at} of the attention: {whole} at once, {chunk} in chunks"));
    }
    if keys.has_bits_of(chunk_keys) && values.has_bits_of(chunk_values) {
        Ok(())
    } else {
        Err("the caches differ".into())
    }
}
