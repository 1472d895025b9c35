//! Attention on a processor: the bits of [`attention_cpu`](crate::transformer::attention_cpu), from a cache that is laid out for vectors.

use crate::{
    error::Result,
    ops::{
        exp::exp,
        transformer::{AttentionShape, HostKvCache},
    },
};
use rayon::prelude::*;

/// Positions whose keys lie together. Of fewer, compilers unroll loops instead of making vectors of them.
const BLOCK: usize = 64;

/// Running sums of a score, as the twin has them.
const SUMS: usize = 8;

/// The keys and values of one sequence in one layer, by key head.
#[derive(Clone)]
pub struct KvCache {
    shape: AttentionShape,
    len: usize,
    heads: Vec<KeyHead>,
}

/// Keys `[position / 64, head_dim, 64]`, the dimensions in the order of [`place`], so that a vector has positions side by side, each with its own sum, and nothing is added up across a vector; values
/// `[position, head_dim]`.
#[derive(Clone, Default)]
struct KeyHead {
    keys: Vec<[f32; BLOCK]>,
    values: Vec<f32>,
}

/// Where dimension d lies in a block of keys: those of one running sum after another, so that keys are read in their order.
#[inline(always)]
fn place(d: usize, dim: usize) -> usize {
    let whole = dim / SUMS;
    if d < whole * SUMS { d % SUMS * whole + d / SUMS } else { d }
}

impl KvCache {
    /// An empty cache; refused where the kernels for GPUs refuse one.
    pub fn new(shape: AttentionShape) -> Result<Self> {
        shape.check("key-value cache")?;
        Ok(Self { shape, len: 0, heads: vec![KeyHead::default(); shape.kv_heads] })
    }

    /// Tokens in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Forgets all but the first `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        let dim = self.shape.head_dim;
        self.len = self.len.min(tokens);
        for head in &mut self.heads {
            head.keys.truncate(self.len.div_ceil(BLOCK) * dim);
            head.values.truncate(self.len * dim);
        }
    }

    /// Appends a token's keys and values, `[kv_heads, head_dim]` both.
    fn push(&mut self, keys: &[f32], values: &[f32]) {
        let (dim, lane) = (self.shape.head_dim, self.len % BLOCK);
        for ((head, keys), values) in self.heads.iter_mut().zip(keys.chunks_exact(dim)).zip(values.chunks_exact(dim)) {
            if lane == 0 {
                head.keys.resize(head.keys.len() + dim, [0.0; BLOCK]);
            }
            let first = head.keys.len() - dim;
            let block = &mut head.keys[first..];
            keys.iter().enumerate().for_each(|(d, &key)| block[place(d, dim)][lane] = key);
            head.values.extend_from_slice(values);
        }
        self.len += 1;
    }

    /// A copy in the order of a [`HostKvCache`].
    pub fn to_host(&self) -> Result<HostKvCache> {
        let dim = self.shape.head_dim;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for position in 0..self.len {
            for head in &self.heads {
                let block = &head.keys[position / BLOCK * dim..][..dim];
                keys.extend((0..dim).map(|d| block[place(d, dim)][position % BLOCK]));
                values.extend_from_slice(&head.values[position * dim..][..dim]);
            }
        }
        HostKvCache::from_parts(self.shape, keys, values)
    }

    /// The inverse of [`KvCache::to_host`].
    pub fn from_host(host: &HostKvCache) -> Result<Self> {
        let mut cache = Self::new(host.shape())?;
        let row = cache.shape.kv_heads * cache.shape.head_dim;
        host.keys().chunks_exact(row).zip(host.values().chunks_exact(row)).for_each(|(keys, values)| cache.push(keys, values));
        Ok(cache)
    }
}

/// Rotates the queries and keys of the next tokens of a sequence by `angles` `[positions, head_dim / 2, 2]` (cosine, sine), as
/// [`rope_cpu`](crate::transformer::rope_cpu) does, and appends keys and values to the cache.
pub fn rope(qkv: &mut [f32], angles: &[f32], cache: &mut KvCache) {
    let shape = cache.shape;
    for row in qkv.chunks_exact_mut(shape.row()) {
        let turns = &angles[cache.len * shape.head_dim..][..shape.head_dim];
        let (rotated, values) = row.split_at_mut((shape.heads + shape.kv_heads) * shape.head_dim);
        rotate(rotated, turns);
        cache.push(&rotated[shape.heads * shape.head_dim..], values);
    }
}

#[multiversion::multiversion(targets = "simd")]
fn rotate(heads: &mut [f32], turns: &[f32]) {
    let (turns, _) = turns.as_chunks::<2>();
    for head in heads.chunks_exact_mut(2 * turns.len()) {
        let (low, high) = head.split_at_mut(turns.len());
        for ((a, b), &[cos, sin]) in low.iter_mut().zip(high).zip(turns) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// The attention of the last tokens in `cache`, whose rows of queries, keys and values are `qkv`: `[tokens, heads · head_dim]`.
pub fn attention(qkv: &[f32], cache: &KvCache) -> Vec<f32> {
    /// Products that are worth being given to another thread.
    const WORTH_THREADS: usize = 1 << 15;
    let (shape, row) = (cache.shape, cache.shape.row());
    let (tokens, dim) = (qkv.len() / row, shape.head_dim);
    let (past, sharing) = (cache.len - tokens, shape.heads / shape.kv_heads);
    let mut y = vec![0f32; tokens * shape.heads * dim];
    let group = |(i, y): (usize, &mut [f32])| {
        let (token, head) = (i / shape.kv_heads, i % shape.kv_heads);
        let q = &qkv[token * row + head * sharing * dim..][..sharing * dim];
        attend(q, &cache.heads[head], past + token + 1, dim, y);
    };
    let products = cache.len * sharing * dim;
    let groups = y.par_chunks_exact_mut(sharing * dim).with_min_len((WORTH_THREADS / products.max(1)).max(1));
    groups.enumerate().for_each(group);
    y
}

/// The heads that share a key head, of one token that sees `seen` positions.
#[multiversion::multiversion(targets = "simd")]
fn attend(q: &[f32], head: &KeyHead, seen: usize, dim: usize, y: &mut [f32]) {
    let scale = (dim as f32).sqrt().recip();
    let mut weights = vec![[0f32; BLOCK]; seen.div_ceil(BLOCK)];
    for (q, y) in q.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
        let mut scaled = [0f32; AttentionShape::MAX_DIM];
        scaled.iter_mut().zip(q).for_each(|(to, q)| *to = q * scale);
        let q = &scaled[..dim];
        for (weights, keys) in weights.iter_mut().zip(head.keys.chunks_exact(dim)) {
            *weights = scores(q, keys);
        }
        let weights = &mut weights.as_flattened_mut()[..seen];
        let largest = largest(weights);
        weights.iter_mut().for_each(|weight| *weight = exp(*weight - largest));
        let total: f32 = weights.iter().sum();
        blend(weights, &head.values, dim, y);
        y.iter_mut().for_each(|y| *y /= total);
    }
}

/// The scores of a block of positions. As in the twin, product i goes to running sum i % 8 where there are eight more, and the rest is added at the end.
#[inline(always)]
fn scores(q: &[f32], keys: &[[f32; BLOCK]]) -> [f32; BLOCK] {
    let (whole, rest) = q.as_chunks::<SUMS>();
    let (whole_keys, rest_keys) = keys.split_at(whole.len() * SUMS);
    // A sum of no numbers is -0.
    let (mut all, mut tail) = ([-0.0; BLOCK], [-0.0; BLOCK]);
    // One sum after another: compilers keep one vector in a register, but not eight.
    for i in 0..SUMS {
        let mut sum = [0f32; BLOCK];
        for (q, keys) in whole.iter().zip(&whole_keys[i * whole.len()..]) {
            (0..BLOCK).for_each(|p| sum[p] += q[i] * keys[p]);
        }
        (0..BLOCK).for_each(|p| all[p] += sum[p]);
    }
    for (q, keys) in rest.iter().zip(rest_keys) {
        (0..BLOCK).for_each(|p| tail[p] += q * keys[p]);
    }
    std::array::from_fn(|p| all[p] + tail[p])
}

/// The largest, of running ones side by side.
#[inline(always)]
fn largest(weights: &[f32]) -> f32 {
    let (whole, rest) = weights.as_chunks::<BLOCK>();
    let mut all = [f32::NEG_INFINITY; BLOCK];
    for weights in whole {
        (0..BLOCK).for_each(|p| all[p] = all[p].max(weights[p]));
    }
    all.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Σ weight · value, a position after another, into `y`, which is zeros.
#[inline(always)]
fn blend(weights: &[f32], values: &[f32], dim: usize, y: &mut [f32]) {
    /// Numbers whose sums stay in registers.
    const WIDTH: usize = 64;
    let (wide, rest) = y.as_chunks_mut::<WIDTH>();
    for (i, y) in wide.iter_mut().enumerate() {
        let mut sums = *y;
        for (&weight, values) in weights.iter().zip(values.chunks_exact(dim)) {
            let Some(values) = values[i * WIDTH..].first_chunk::<WIDTH>() else { continue };
            (0..WIDTH).for_each(|d| sums[d] += weight * values[d]);
        }
        *y = sums;
    }
    let first = dim - rest.len();
    for (&weight, values) in weights.iter().zip(values.chunks_exact(dim)) {
        rest.iter_mut().zip(&values[first..]).for_each(|(y, v)| *y += weight * v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::transformer::{attention_cpu, rope_angles, rope_cpu};
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn it_gives_the_bits_of_the_twin() {
        let mut rng = StdRng::seed_from_u64(1);
        for (heads, kv_heads, head_dim) in [(1, 1, 2), (4, 2, 10), (6, 2, 64), (4, 4, 72), (20, 5, 128), (2, 1, 256)] {
            let shape = AttentionShape { heads, kv_heads, head_dim };
            let frequencies: Vec<f32> = (0..head_dim / 2).map(|i| 1.0 / (i + 1) as f32).collect();
            let angles = rope_angles(&frequencies, 200);
            let (mut host, mut cache) = (HostKvCache::new(shape).unwrap(), KvCache::new(shape).unwrap());
            for tokens in [1, 1, 14, 1, 40, 3, 0, 100] {
                let mut qkv: Vec<f32> = (0..tokens * shape.row()).map(|_| rng.random_range(-4.0..4.0)).collect();
                let mut same = qkv.clone();
                rope_cpu(&mut qkv, &angles, &mut host).unwrap();
                rope(&mut same, &angles, &mut cache);
                assert_eq!(bits(&same), bits(&qkv));
                assert_eq!(bits(&attention(&same, &cache)), bits(&attention_cpu(&qkv, &host).unwrap()), "{shape:?}, {tokens} tokens");
                let copy = cache.to_host().unwrap();
                assert_eq!((copy.keys(), copy.values()), (host.keys(), host.values()));
            }
            // What is forgotten leaves nothing behind, and a copy goes on as the original.
            for keep in [150, 33, 32, 31] {
                host.truncate(keep);
                cache.truncate(keep);
                let mut copy = KvCache::from_host(&host).unwrap();
                let mut qkv: Vec<f32> = (0..2 * shape.row()).map(|_| rng.random_range(-4.0..4.0)).collect();
                let (mut same, mut copied) = (qkv.clone(), qkv.clone());
                rope_cpu(&mut qkv, &angles, &mut host).unwrap();
                rope(&mut same, &angles, &mut cache);
                rope(&mut copied, &angles, &mut copy);
                let expected = bits(&attention_cpu(&qkv, &host).unwrap());
                assert_eq!((bits(&attention(&same, &cache)), bits(&attention(&copied, &copy))), (expected.clone(), expected));
            }
        }
    }
}
