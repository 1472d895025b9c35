//! Attention on a processor: the bits of [`attention`](crate::reference::attention), from
//! a cache that is laid out for vectors, in 32 bits or in 16.

use super::{
    cache::{BLOCK, Heads, KeyHead, KvCache, Number, SUMS, place},
    prefetch::prefetch_after,
    threads::by_chunks,
};
use crate::{
    error::{Error, Result},
    ops::exp::exp,
};
use half::f16;
use std::ops::Range;

/// Running sums side by side.
const LANES: usize = 16;

/// Bytes ahead that memory is asked for, a line with every line that is read: the processor's own
/// prefetcher ends at every page.
const AHEAD: usize = 2048;

/// Applies rotary embedding to the next tokens of a sequence, and appends their keys and values to
/// the cache. `qkv` is `[tokens, (heads + 2 kv_heads) · head_dim]`, `angles`
/// `[positions, head_dim / 2, 2]` (cosine, sine). Bit-identical to
/// [`reference::rope`](crate::reference::rope).
///
/// # Errors
/// [`Error::Length`] if `qkv` is not whole rows; [`Error::Invalid`] if `angles` end before the last
/// position.
pub fn rope(qkv: &mut [f32], angles: &[f32], cache: &mut KvCache) -> Result<()> {
    let (shape, tokens) = (cache.shape, cache.rows(qkv)?);
    let room = angles.len() / shape.head_dim;
    if cache.len + tokens > room {
        return Err(Error::Invalid { op: "rope", what: format!("angles for {room} positions") });
    }
    for row in qkv.chunks_exact_mut(shape.row()) {
        let turns = &angles[cache.len * shape.head_dim..][..shape.head_dim];
        let (rotated, values) = row.split_at_mut((shape.heads + shape.kv_heads) * shape.head_dim);
        rotate(rotated, turns);
        cache.push(&rotated[shape.heads * shape.head_dim..], values);
    }
    Ok(())
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

/// Returns the attention of the last tokens in `cache`, `[tokens, heads · head_dim]`. `qkv` is the
/// rows that [`rope`] appended to it. Bit-identical to
/// [`reference::attention`](crate::reference::attention), of a cache in `f16` too.
///
/// # Errors
/// [`Error::Length`] if `qkv` is not whole rows; [`Error::Invalid`] if the cache has fewer tokens.
pub fn attention(qkv: &[f32], cache: &KvCache) -> Result<Vec<f32>> {
    /// Products that are worth being given to another thread.
    const WORTH_THREADS: usize = 1 << 15;
    /// Queries, of heads that share keys and of tokens, that read a block of keys and of values
    /// while a cache has it.
    const TOGETHER: usize = 8;
    let (shape, stride) = (cache.shape, cache.shape.row());
    let (all, dim, kv_heads) = (cache.rows(qkv)?, shape.head_dim, shape.kv_heads);
    let Some(past) = cache.len.checked_sub(all) else {
        let what = format!("{all} tokens, {} in the cache", cache.len);
        return Err(Error::Invalid { op: "attention", what });
    };
    let sharing = shape.heads / kv_heads;
    let (width, together) = (sharing * dim, (TOGETHER / sharing).min(all).max(1));
    // `[all / together, kv_heads, together, sharing, head_dim]`: what is computed together,
    // together.
    let mut by_run = vec![0f32; all.next_multiple_of(together) * kv_heads * width];
    let run = |i: usize, y: &mut [f32]| {
        let (token, head) = (i / kv_heads * together, i % kv_heads);
        let (queries, tokens) = (&qkv[token * stride + head * width..], together.min(all - token));
        let run = Run {
            queries,
            stride,
            tokens,
            sharing,
            dim,
            first: past + token,
            window: cache.window,
        };
        match &cache.heads {
            Heads::F32(heads) => attend(&run, &heads[head], y),
            Heads::F16(heads) => attend_f16(&run, &heads[head], y),
        }
    };
    let products = cache.len * together * width;
    let (one, runs) = (together * width, (WORTH_THREADS / products.max(1)).max(1));
    by_chunks(&mut by_run, runs * one, |first, y| {
        (first / one..).zip(y.chunks_exact_mut(one)).for_each(|(i, y)| run(i, y));
    });
    if together == 1 {
        return Ok(by_run);
    }
    let mut y = vec![0f32; all * kv_heads * width];
    for (i, y) in y.chunks_exact_mut(width).enumerate() {
        let (token, head) = (i / kv_heads, i % kv_heads);
        let row = (token / together * kv_heads + head) * together + token % together;
        y.copy_from_slice(&by_run[row * width..][..width]);
    }
    Ok(y)
}

#[multiversion::multiversion(targets = "simd")]
fn attend(run: &Run<'_>, head: &KeyHead<f32>, y: &mut [f32]) {
    attend_as(run, head, y);
}

#[multiversion::multiversion(targets = "simd")]
fn attend_f16(run: &Run<'_>, head: &KeyHead<f16>, y: &mut [f32]) {
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
/// `q`. As in the CPU reference, product i goes to running sum i % 8 where there are eight more,
/// and the rest is added at the end.
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

/// Adds x times this many numbers to `sums`.
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

/// Blends the columns from `first` on.
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
    use crate::{
        element::Element,
        ops::{
            reference,
            transformer::{AttentionShape, HostKvCache, rope_angles},
        },
    };
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|v| v.to_bits()).collect()
    }

    /// A cache as it is in 16 bits, and as `f32` has those.
    fn f16s(host: &HostKvCache, window: Option<usize>) -> HostKvCache {
        let round = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        HostKvCache::from_parts(host.shape(), round(host.keys()), round(host.values()))
            .unwrap()
            .window(window)
    }

    #[test]
    fn it_is_bit_identical_to_the_reference() {
        let mut rng = StdRng::seed_from_u64(1);
        let shapes =
            [(1, 1, 2), (4, 2, 10), (6, 2, 64), (4, 4, 72), (2, 2, 96), (20, 5, 128), (2, 1, 256)];
        let windows = [None, Some(1), Some(63), Some(64), Some(65), Some(100), None];
        for ((heads, kv_heads, head_dim), window) in shapes.into_iter().zip(windows) {
            let shape = AttentionShape { heads, kv_heads, head_dim };
            let frequencies: Vec<f32> = (0..head_dim / 2).map(|i| 1.0 / (i + 1) as f32).collect();
            let angles = rope_angles(&frequencies, 200);
            for in_f16 in [false, true] {
                let kept = |host: &HostKvCache| {
                    if in_f16 { f16s(host, window) } else { host.clone() }
                };
                let mut host = HostKvCache::new(shape).unwrap().window(window);
                let element = if in_f16 { Element::F16 } else { Element::F32 };
                let mut cache = KvCache::new(shape, element).unwrap().window(window);
                for tokens in [1, 1, 14, 1, 40, 3, 0, 100] {
                    let mut qkv: Vec<f32> =
                        (0..tokens * shape.row()).map(|_| rng.random_range(-4.0..4.0)).collect();
                    let mut same = qkv.clone();
                    reference::rope(&mut qkv, &angles, &mut host).unwrap();
                    rope(&mut same, &angles, &mut cache).unwrap();
                    assert_eq!(bits(&same), bits(&qkv));
                    let host = kept(&host);
                    assert_eq!(
                        bits(&attention(&same, &cache).unwrap()),
                        bits(&reference::attention(&qkv, &host).unwrap()),
                        "{shape:?}, {tokens} tokens"
                    );
                    let copy = cache.read().unwrap();
                    assert_eq!((copy.keys(), copy.values()), (host.keys(), host.values()));
                }
                // What is forgotten leaves nothing behind, and a copy goes on as the original.
                for keep in [150, 33, 32, 31] {
                    host.truncate(keep);
                    cache.truncate(keep);
                    let mut copy = cache.clone();
                    copy.write(&host).unwrap();
                    let mut qkv: Vec<f32> =
                        (0..2 * shape.row()).map(|_| rng.random_range(-4.0..4.0)).collect();
                    let (mut same, mut copied) = (qkv.clone(), qkv.clone());
                    reference::rope(&mut qkv, &angles, &mut host).unwrap();
                    rope(&mut same, &angles, &mut cache).unwrap();
                    rope(&mut copied, &angles, &mut copy).unwrap();
                    let expected = bits(&reference::attention(&qkv, &kept(&host)).unwrap());
                    assert_eq!(
                        (
                            bits(&attention(&same, &cache).unwrap()),
                            bits(&attention(&copied, &copy).unwrap())
                        ),
                        (expected.clone(), expected)
                    );
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 4 };
        let mut cache = KvCache::new(shape, Element::F32).unwrap();
        let (mut qkv, angles) = (vec![1.0; 3 * shape.row()], rope_angles(&[1.0, 0.5], 2));
        assert!(matches!(rope(&mut qkv[1..], &angles, &mut cache), Err(Error::Length { .. })));
        assert!(matches!(rope(&mut qkv, &angles, &mut cache), Err(Error::Invalid { .. })));
        assert!(cache.is_empty(), "what is refused appends nothing");
        rope(&mut qkv[shape.row()..], &angles, &mut cache).unwrap();
        assert!(matches!(attention(&qkv[1..], &cache), Err(Error::Length { .. })));
        assert!(matches!(attention(&qkv, &cache), Err(Error::Invalid { .. })));
        assert!(attention(&[], &cache).unwrap().is_empty());

        let most = usize::MAX;
        for (shape, element) in [
            (shape, Element::U32),
            (AttentionShape { heads: 3, kv_heads: 2, ..shape }, Element::F32),
            (AttentionShape { head_dim: 3, ..shape }, Element::F16),
            (AttentionShape { heads: most, kv_heads: most, ..shape }, Element::F32),
        ] {
            assert!(matches!(KvCache::new(shape, element), Err(Error::Invalid { .. })));
        }
        let other = HostKvCache::new(AttentionShape { head_dim: 8, ..shape }).unwrap();
        assert!(matches!(cache.write(&other), Err(Error::Invalid { .. })));
        assert_eq!(cache.len(), 2, "what is refused removes nothing");
    }
}
