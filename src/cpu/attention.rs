//! Attention on a processor: the bits of [`attention`](crate::reference::attention), from
//! a cache that is laid out for vectors, in 32 bits or in 16.

use super::{halves, prefetch::prefetch_after};
use crate::{
    error::Result,
    ops::{
        exp::exp,
        transformer::{AttentionShape, HostKvCache},
    },
};
use half::{f16, slice::HalfFloatSliceExt};
use rayon::prelude::*;
use std::{borrow::Cow, ops::Range};

/// Positions whose keys lie together. Of fewer, compilers unroll loops instead of making vectors of
/// them.
const BLOCK: usize = 64;

/// Running sums side by side.
const LANES: usize = 16;

/// Bytes ahead that memory is asked for, a line with every line that is read: the processor's own
/// prefetcher ends at every page.
const AHEAD: usize = 2048;

/// Running sums of a score, as the twin has them.
const SUMS: usize = 8;

/// The keys and values of one sequence in one layer.
#[derive(Clone)]
pub struct KvCache {
    shape: AttentionShape,
    len: usize,
    heads: Heads,
    /// Positions that a token sees, itself among them; all where there is none.
    window: Option<usize>,
}

/// By key head, in the type that they are kept in.
#[derive(Clone)]
enum Heads {
    F32(Vec<KeyHead<f32>>),
    F16(Vec<KeyHead<f16>>),
}

/// Does the same with the heads of either type.
macro_rules! each_type {
    ($heads:expr, $bound:ident => $what:expr) => {
        match $heads {
            Heads::F32($bound) => $what,
            Heads::F16($bound) => $what,
        }
    };
}

/// Keys `[position / 64, head_dim, 64]`, the dimensions in the order of [`place`], so that a vector
/// has positions side by side, each with its own sum, and nothing is added up across a vector;
/// values `[position, head_dim]`.
#[derive(Clone)]
struct KeyHead<T> {
    keys: Vec<[T; BLOCK]>,
    values: Vec<T>,
}

impl<T: Number> KeyHead<T> {
    fn none() -> Self {
        Self { keys: Vec::new(), values: Vec::new() }
    }

    fn truncate(&mut self, tokens: usize, dim: usize) {
        self.keys.truncate(tokens.div_ceil(BLOCK) * dim);
        self.values.truncate(tokens * dim);
    }

    /// Appends keys and values `[head_dim]` as token `at`.
    fn push(&mut self, at: usize, keys: &[T], values: &[T]) {
        let (dim, lane) = (keys.len(), at % BLOCK);
        if lane == 0 {
            self.keys.resize(self.keys.len() + dim, [T::default(); BLOCK]);
        }
        let first = self.keys.len() - dim;
        let block = &mut self.keys[first..];
        keys.iter().enumerate().for_each(|(d, &key)| block[place(d, dim)][lane] = key);
        self.values.extend_from_slice(values);
    }
}

/// A type that keys and values are kept in.
trait Number: Copy + Default + Send + Sync {
    /// Whether memory is asked for ahead. Numbers of 16 bits, of which a page has twice as many,
    /// gain nothing by it.
    const NEAR: bool;

    /// The nearest numbers of this type.
    fn narrow(from: &[f32]) -> Cow<'_, [Self]>;

    /// The same numbers in `f32`: `from` itself, or written to the beginning of `room`.
    fn widen<'a>(from: &'a [Self], room: &'a mut Vec<f32>) -> &'a [f32];
}

impl Number for f32 {
    const NEAR: bool = true;

    fn narrow(from: &[f32]) -> Cow<'_, [Self]> {
        from.into()
    }

    #[inline(always)]
    fn widen<'a>(from: &'a [Self], _: &'a mut Vec<f32>) -> &'a [f32] {
        from
    }
}

impl Number for f16 {
    const NEAR: bool = false;

    fn narrow(from: &[f32]) -> Cow<'_, [Self]> {
        let mut halves = vec![Self::ZERO; from.len()];
        halves.convert_from_f32_slice(from);
        halves.into()
    }

    #[inline(always)]
    fn widen<'a>(from: &'a [Self], room: &'a mut Vec<f32>) -> &'a [f32] {
        if room.len() < from.len() {
            room.resize(from.len(), 0.0);
        }
        let room = &mut room[..from.len()];
        halves::widen(from, room);
        room
    }
}

/// Where dimension d lies in a block of keys: those of one running sum after another, so that keys
/// are read in their order.
#[inline(always)]
fn place(d: usize, dim: usize) -> usize {
    let whole = dim / SUMS;
    if d < whole * SUMS { d % SUMS * whole + d / SUMS } else { d }
}

impl KvCache {
    /// An empty cache, of numbers in 16 bits or in 32, all of which tokens see, or so many; refused
    /// where the kernels for GPUs refuse one.
    pub fn new(shape: AttentionShape, halves: bool, window: Option<usize>) -> Result<Self> {
        shape.check("key-value cache")?;
        let count = shape.kv_heads;
        let heads = if halves {
            Heads::F16(vec![KeyHead::none(); count])
        } else {
            Heads::F32(vec![KeyHead::none(); count])
        };
        Ok(Self { shape, len: 0, heads, window })
    }

    /// Tokens in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Forgets all but the first `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        self.len = self.len.min(tokens);
        each_type!(&mut self.heads, heads => heads.iter_mut().for_each(|head| head.truncate(self.len, self.shape.head_dim)));
    }

    /// Appends a token's keys and values, `[kv_heads, head_dim]` both.
    fn push(&mut self, keys: &[f32], values: &[f32]) {
        fn push<T: Number>(
            heads: &mut [KeyHead<T>],
            at: usize,
            dim: usize,
            keys: &[f32],
            values: &[f32],
        ) {
            let (keys, values) = (T::narrow(keys), T::narrow(values));
            let rows = keys.chunks_exact(dim).zip(values.chunks_exact(dim));
            heads
                .iter_mut()
                .zip(rows)
                .for_each(|(head, (keys, values))| head.push(at, keys, values));
        }
        each_type!(&mut self.heads, heads => push(heads, self.len, self.shape.head_dim, keys, values));
        self.len += 1;
    }

    /// A copy in the order of a [`HostKvCache`].
    pub fn to_host(&self) -> Result<HostKvCache> {
        fn copy<T: Number>(heads: &[KeyHead<T>], len: usize, dim: usize) -> (Vec<f32>, Vec<f32>) {
            let (mut keys, mut values, mut room) = (Vec::new(), Vec::new(), Vec::new());
            for position in 0..len {
                for head in heads {
                    let block = &head.keys[position / BLOCK * dim..][..dim];
                    let row: Vec<T> =
                        (0..dim).map(|d| block[place(d, dim)][position % BLOCK]).collect();
                    keys.extend_from_slice(T::widen(&row, &mut room));
                    values.extend_from_slice(T::widen(
                        &head.values[position * dim..][..dim],
                        &mut room,
                    ));
                }
            }
            (keys, values)
        }
        let (keys, values) =
            each_type!(&self.heads, heads => copy(heads, self.len, self.shape.head_dim));
        HostKvCache::from_parts(self.shape, keys, values)
    }

    /// The inverse of [`KvCache::to_host`], in the type of this one.
    pub fn copied(&self, host: &HostKvCache) -> Result<Self> {
        let mut cache = Self::new(host.shape(), matches!(self.heads, Heads::F16(_)), self.window)?;
        let row = cache.shape.kv_heads * cache.shape.head_dim;
        host.keys()
            .chunks_exact(row)
            .zip(host.values().chunks_exact(row))
            .for_each(|(keys, values)| cache.push(keys, values));
        Ok(cache)
    }
}

/// Rotates the queries and keys of the next tokens of a sequence by `angles`
/// `[positions, head_dim / 2, 2]` (cosine, sine), as [`rope`](crate::reference::rope)
/// does, and appends keys and values to the cache.
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

/// Some tokens, one after another, and the heads of theirs that share a key head.
struct Run<'a> {
    /// `[sharing, head_dim]` of the first token; those of each next one are `stride` further.
    queries: &'a [f32],
    stride: usize,
    tokens: usize,
    sharing: usize,
    dim: usize,
    /// The first token's position.
    first: usize,
    window: Option<usize>,
}

impl Run<'_> {
    /// The positions that one of the tokens sees.
    fn seen(&self, token: usize) -> Range<usize> {
        let end = self.first + token + 1;
        end - end.min(self.window.unwrap_or(end))..end
    }
}

/// The attention of the last tokens in `cache`, whose rows of queries, keys and values are `qkv`:
/// `[tokens, heads · head_dim]`.
pub fn attention(qkv: &[f32], cache: &KvCache) -> Vec<f32> {
    /// Products that are worth being given to another thread.
    const WORTH_THREADS: usize = 1 << 15;
    /// Queries, of heads that share keys and of tokens, that read a block of keys and of values
    /// while a cache has it.
    const TOGETHER: usize = 8;
    let (shape, stride) = (cache.shape, cache.shape.row());
    let (all, dim, kv_heads) = (qkv.len() / stride, shape.head_dim, shape.kv_heads);
    let sharing = shape.heads / kv_heads;
    let (width, together) = (sharing * dim, (TOGETHER / sharing).min(all).max(1));
    // `[all / together, kv_heads, together, sharing, head_dim]`: what is computed together,
    // together.
    let mut by_run = vec![0f32; all.next_multiple_of(together) * kv_heads * width];
    let run = |(i, y): (usize, &mut [f32])| {
        let (token, head) = (i / kv_heads * together, i % kv_heads);
        let (queries, tokens) = (&qkv[token * stride + head * width..], together.min(all - token));
        let run = Run {
            queries,
            stride,
            tokens,
            sharing,
            dim,
            first: cache.len - all + token,
            window: cache.window,
        };
        match &cache.heads {
            Heads::F32(heads) => attend(&run, &heads[head], y),
            Heads::F16(heads) => attend_halves(&run, &heads[head], y),
        }
    };
    let products = cache.len * together * width;
    let runs = by_run
        .par_chunks_exact_mut(together * width)
        .with_min_len((WORTH_THREADS / products.max(1)).max(1));
    runs.enumerate().for_each(run);
    if together == 1 {
        return by_run;
    }
    let mut y = vec![0f32; all * kv_heads * width];
    for (i, y) in y.chunks_exact_mut(width).enumerate() {
        let (token, head) = (i / kv_heads, i % kv_heads);
        let row = (token / together * kv_heads + head) * together + token % together;
        y.copy_from_slice(&by_run[row * width..][..width]);
    }
    y
}

#[multiversion::multiversion(targets = "simd")]
fn attend(run: &Run<'_>, head: &KeyHead<f32>, y: &mut [f32]) {
    attend_as(run, head, y);
}

#[multiversion::multiversion(targets = "simd")]
fn attend_halves(run: &Run<'_>, head: &KeyHead<f16>, y: &mut [f32]) {
    attend_as(run, head, y);
}

/// The attention of a run: `[tokens, sharing, head_dim]`, added to zeros.
///
/// Loops are `for` here: a closure that an iterator calls is compiled for the oldest of processors.
#[inline(always)]
fn attend_as<T: Number>(run: &Run<'_>, head: &KeyHead<T>, y: &mut [f32]) {
    let (dim, sharing) = (run.dim, run.sharing);
    let (scale, rows) = ((dim as f32).sqrt().recip(), run.tokens * sharing);
    // Of whole blocks, those from the first that any of the tokens sees to the last.
    let (first, end) = (run.seen(0).start / BLOCK, run.seen(run.tokens - 1).end);
    let blocks = end.div_ceil(BLOCK) - first;
    // In the order of the keys.
    let mut scaled = vec![0f32; rows * dim];
    for (row, scaled) in scaled.chunks_exact_mut(dim).enumerate() {
        let q = &run.queries[row / sharing * run.stride + row % sharing * dim..][..dim];
        for (d, q) in q.iter().enumerate() {
            scaled[place(d, dim)] = q * scale;
        }
    }
    // A sum of no numbers is -0.
    let (mut scores, mut room) = (vec![[-0.0; BLOCK]; rows * blocks], Vec::new());
    for (block, keys) in head.keys.chunks_exact(dim).skip(first).take(blocks).enumerate() {
        add_scores(&scaled, keys, &mut room, &mut scores[block..], blocks);
    }
    let mut totals = vec![0f32; rows];
    for (row, (total, scores)) in totals.iter_mut().zip(scores.chunks_exact_mut(blocks)).enumerate()
    {
        let seen = run.seen(row / sharing);
        *total = weigh(&mut scores.as_flattened_mut()[seen.start - first * BLOCK..][..seen.len()]);
    }
    for block in 0..blocks {
        let (start, stop) = ((first + block) * BLOCK, end.min((first + block + 1) * BLOCK));
        let values = T::widen(&head.values[start * dim..stop * dim], &mut room);
        for (row, (weights, y)) in
            scores[block..].iter().step_by(blocks).zip(y.chunks_exact_mut(dim)).enumerate()
        {
            let seen = run.seen(row / sharing);
            let (from, to) =
                (seen.start.clamp(start, stop) - start, seen.end.clamp(start, stop) - start);
            blend(&weights[from..to], &values[from * dim..to * dim], dim, T::NEAR && row == 0, y);
        }
    }
    for (y, total) in y.chunks_exact_mut(dim).zip(totals) {
        for y in y {
            *y /= total;
        }
    }
}

/// Adds the scores of a block of positions to every `stride`-th of `scores`, one for each head of
/// `q`. As in the twin, product i goes to running sum i % 8 where there are eight more, and the
/// rest is added at the end.
#[inline(always)]
fn add_scores<T: Number>(
    q: &[f32],
    keys: &[[T; BLOCK]],
    room: &mut Vec<f32>,
    scores: &mut [[f32; BLOCK]],
    stride: usize,
) {
    let (dim, whole) = (keys.len(), keys.len() / SUMS);
    // One sum after another: registers hold one for each position, but not eight.
    for part in 0..=SUMS {
        let (rows, none) = if part < SUMS {
            (part * whole..(part + 1) * whole, 0.0)
        } else {
            (SUMS * whole..dim, -0.0)
        };
        let (keys, _) = T::widen(keys[rows.clone()].as_flattened(), room).as_chunks::<BLOCK>();
        for (i, (q, scores)) in
            q.chunks_exact(dim).zip(scores.iter_mut().step_by(stride)).enumerate()
        {
            add_products(&q[rows.clone()], keys, none, T::NEAR && i == 0, scores);
        }
    }
}

/// Adds Σ q · key, a row of keys after another, beginning with `none`, to `scores`.
#[inline(always)]
fn add_products(
    q: &[f32],
    keys: &[[f32; BLOCK]],
    none: f32,
    near: bool,
    scores: &mut [f32; BLOCK],
) {
    // By name: compilers keep these in registers, and no array of 64.
    let [mut a, mut b, mut c, mut d] = [[none; LANES]; BLOCK / LANES];
    for (&q, keys) in q.iter().zip(keys) {
        if near {
            prefetch_after(keys, AHEAD);
        }
        let (keys, _) = keys.as_chunks();
        add_scaled(&mut a, q, &keys[0]);
        add_scaled(&mut b, q, &keys[1]);
        add_scaled(&mut c, q, &keys[2]);
        add_scaled(&mut d, q, &keys[3]);
    }
    let (scores, _) = scores.as_chunks_mut();
    for (scores, sums) in scores.iter_mut().zip([a, b, c, d]) {
        add_scaled(scores, 1.0, &sums);
    }
}

/// Adds x times so many numbers to `sums`.
#[inline(always)]
fn add_scaled<const N: usize>(sums: &mut [f32; N], x: f32, numbers: &[f32; N]) {
    for (sum, number) in sums.iter_mut().zip(numbers) {
        *sum += x * number;
    }
}

/// Scores as weights, whose largest is 1, and the sum of these, one after another.
#[inline(always)]
fn weigh(scores: &mut [f32]) -> f32 {
    let largest = largest(scores);
    for score in scores.iter_mut() {
        *score = exp(*score - largest);
    }
    let mut sum = 0.0;
    for weight in scores {
        sum += *weight;
    }
    sum
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

/// Adds Σ weight · value, a position after another, to `y`. Its sums stay in registers, as many of
/// them as there are registers for.
#[inline(always)]
fn blend(weights: &[f32], values: &[f32], dim: usize, near: bool, y: &mut [f32]) {
    let (wide, rest) = y.as_chunks_mut::<BLOCK>();
    for (i, y) in wide.iter_mut().enumerate() {
        blend_columns(weights, values, dim, BLOCK * i, near, y);
    }
    let narrow = dim - rest.len();
    let (pieces, rest) = rest.as_chunks_mut::<LANES>();
    for (i, y) in pieces.iter_mut().enumerate() {
        blend_columns(weights, values, dim, narrow + LANES * i, near, y);
    }
    let first = dim - rest.len();
    for (&weight, values) in weights.iter().zip(values.chunks_exact(dim)) {
        for (y, value) in rest.iter_mut().zip(&values[first..]) {
            *y += weight * value;
        }
    }
}

/// The same for the columns from `first` on.
#[inline(always)]
fn blend_columns<const N: usize>(
    weights: &[f32],
    values: &[f32],
    dim: usize,
    first: usize,
    near: bool,
    y: &mut [f32; N],
) {
    let mut sums = *y;
    for (&weight, values) in weights.iter().zip(values.chunks_exact(dim)) {
        let Some(values) = values[first..].first_chunk::<N>() else { continue };
        if near {
            prefetch_after(values, AHEAD);
        }
        add_scaled(&mut sums, weight, values);
    }
    *y = sums;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{reference, transformer::rope_angles};
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|v| v.to_bits()).collect()
    }

    /// A cache as it is in 16 bits, and as `f32` has those.
    fn halves(host: &HostKvCache, window: Option<usize>) -> HostKvCache {
        let round = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        HostKvCache::from_parts(host.shape(), round(host.keys()), round(host.values()))
            .unwrap()
            .window(window)
    }

    #[test]
    fn it_gives_the_bits_of_the_twin() {
        let mut rng = StdRng::seed_from_u64(1);
        let shapes =
            [(1, 1, 2), (4, 2, 10), (6, 2, 64), (4, 4, 72), (2, 2, 96), (20, 5, 128), (2, 1, 256)];
        let windows = [None, Some(1), Some(63), Some(64), Some(65), Some(100), None];
        for ((heads, kv_heads, head_dim), window) in shapes.into_iter().zip(windows) {
            let shape = AttentionShape { heads, kv_heads, head_dim };
            let frequencies: Vec<f32> = (0..head_dim / 2).map(|i| 1.0 / (i + 1) as f32).collect();
            let angles = rope_angles(&frequencies, 200);
            for in_halves in [false, true] {
                let kept = |host: &HostKvCache| {
                    if in_halves { halves(host, window) } else { host.clone() }
                };
                let mut host = HostKvCache::new(shape).unwrap().window(window);
                let mut cache = KvCache::new(shape, in_halves, window).unwrap();
                for tokens in [1, 1, 14, 1, 40, 3, 0, 100] {
                    let mut qkv: Vec<f32> =
                        (0..tokens * shape.row()).map(|_| rng.random_range(-4.0..4.0)).collect();
                    let mut same = qkv.clone();
                    reference::rope(&mut qkv, &angles, &mut host).unwrap();
                    rope(&mut same, &angles, &mut cache);
                    assert_eq!(bits(&same), bits(&qkv));
                    let host = kept(&host);
                    assert_eq!(
                        bits(&attention(&same, &cache)),
                        bits(&reference::attention(&qkv, &host).unwrap()),
                        "{shape:?}, {tokens} tokens"
                    );
                    let copy = cache.to_host().unwrap();
                    assert_eq!((copy.keys(), copy.values()), (host.keys(), host.values()));
                }
                // What is forgotten leaves nothing behind, and a copy goes on as the original.
                for keep in [150, 33, 32, 31] {
                    host.truncate(keep);
                    cache.truncate(keep);
                    let mut copy = cache.copied(&host).unwrap();
                    let mut qkv: Vec<f32> =
                        (0..2 * shape.row()).map(|_| rng.random_range(-4.0..4.0)).collect();
                    let (mut same, mut copied) = (qkv.clone(), qkv.clone());
                    reference::rope(&mut qkv, &angles, &mut host).unwrap();
                    rope(&mut same, &angles, &mut cache);
                    rope(&mut copied, &angles, &mut copy);
                    let expected = bits(&reference::attention(&qkv, &kept(&host)).unwrap());
                    assert_eq!(
                        (bits(&attention(&same, &cache)), bits(&attention(&copied, &copy))),
                        (expected.clone(), expected)
                    );
                }
            }
        }
    }
}
