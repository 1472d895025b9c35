//! The rest of a transformer: embeddings, norms, rotary positions, attention, sampling.

use super::{Case, SUM, case, half};
use crate::doctor::{
    compare::{Bound, Number},
    trial::Trial,
};
use anyhow::Result;
use bitnet_wgpu::{
    Element, Tensor, reference,
    tensor::{Float, f16},
    transformer::{
        self, AttentionShape, CachePositions, FlashAttention, HostKvCache, KvCache, LogitMasks,
        Penalizer, Penalties, RmsNorm, RmsNormHeads, RotaryEmbedding, SampleOptions, SampleParams,
    },
    weights::{DenseElement, PackedDense, PackedTernary, Scales},
};
use pollster::block_on;

const EPS: f32 = 1e-5;
const GRADIENT: f64 = 1e-4;
/// Scores of attention are sums, of which exponentials are taken, and of those sums again.
const ATTENTION: f64 = 3e-5;

pub const CASES: &[Case] = &[
    case("transformer::attention, one token", |t| attention(t, 1, Element::F32)),
    case("transformer::attention, many tokens", |t| attention(t, 13, Element::F32)),
    half("transformer::attention, f16 cache", |t| attention(t, 13, Element::F16)),
    case("transformer::dense_gemv", dense_gemv),
    case("transformer::embed", embed),
    case("transformer::embed_ternary", embed_ternary),
    case("transformer::flash_attention", flash_attention),
    case("transformer::flash_attention_backward", flash_attention_backward),
    case("transformer::mask_logits", mask_logits),
    case("transformer::penalize", penalize),
    case("transformer::rms_norm", rms_norm::<f32>),
    half("transformer::rms_norm, f16", rms_norm::<f16>),
    case("transformer::rms_norm_backward", rms_norm_backward),
    case("transformer::rms_norm_heads", rms_norm_heads),
    case("transformer::rope", rope),
    case("transformer::rotate", rotate),
    case("transformer::route", route),
    case("transformer::sample", sample),
    case("transformer::top_k", top_k),
];

const SHAPE: AttentionShape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 40 };

/// Rotary angles of the first positions.
fn angles(positions: usize) -> Vec<f32> {
    let half = SHAPE.head_dim / 2;
    let frequencies: Vec<f32> = (0..half).map(|i| 100f32.powf(-(i as f32) / half as f32)).collect();
    transformer::rope_angles(&frequencies, positions)
}

/// Numbers that are exact in `f16`, so that a cache of those holds the same.
fn f16s(t: &mut Trial, len: usize) -> Vec<f32> {
    t.values::<f16>(len).into_iter().map(Into::into).collect()
}

/// New tokens after 70 others, in the first of two sequences: two splits of the cache and a part of
/// one.
fn attention(t: &mut Trial, run: usize, element: Element) -> Result<()> {
    let (past, capacity) = (70, 99);
    let width = SHAPE.kv_heads * SHAPE.head_dim;
    let (keys, values) = (f16s(t, (past + run) * width), f16s(t, (past + run) * width));
    let qkv = f16s(t, run * SHAPE.row());
    let host = HostKvCache::from_parts(SHAPE, keys, values)?;
    let cache = KvCache::new(&t.context, SHAPE, 2, capacity, element)?;
    cache.write(&[host.clone(), HostKvCache::new(SHAPE)?])?;
    let runs = t.context.upload(&[0, past as u32], [1, 2])?;
    let y = transformer::attention(
        &t.context.upload(&qkv, [run, SHAPE.row()])?,
        CachePositions::new(&runs, run),
        &cache,
    )
    .max_len(capacity)
    .forward(&mut t.encoder)?;
    t.near(&y, &reference::attention(&qkv, &host)?, ATTENTION);
    Ok(())
}

fn rope(t: &mut Trial) -> Result<()> {
    let (run, capacity) = (5, 9);
    let (mut qkv, angles) = (t.floats(run * SHAPE.row()), angles(capacity));
    let cache = KvCache::new(&t.context, SHAPE, 1, capacity, Element::F32)?;
    let (there, runs) =
        (t.context.upload(&qkv, [run, SHAPE.row()])?, t.context.upload(&[0, 0], [1, 2])?);
    let angles_there = t.context.upload(&angles, [capacity, SHAPE.head_dim / 2, 2])?;
    transformer::rope(&there, CachePositions::new(&runs, run), &angles_there, &cache)
        .forward(&mut t.encoder)?;
    let mut host = HostKvCache::new(SHAPE)?;
    reference::rope(&mut qkv, &angles, &mut host)?;
    // Keys and values may stay in the rows or not: the cache has them.
    let read = move || Ok(block_on(cache.read(&[run])?)?.remove(0));
    t.check(Bound::Within(SUM), read, &host);
    Ok(())
}

fn rotate(t: &mut Trial) -> Result<()> {
    let (tokens, heads, dim, start) = (5, 4, SHAPE.head_dim, 3);
    let (mut x, angles) = (t.floats(tokens * heads * dim), angles(start + tokens));
    let there = t.context.upload(&x, [tokens, heads, dim])?;
    let y = RotaryEmbedding::new(&t.context.upload(&angles, [start + tokens, dim / 2, 2])?)
        .start(start)
        .forward(&mut t.encoder, &there)?;
    for (head, x) in x.chunks_mut(dim).enumerate() {
        reference::rotate(x, &angles, start + head / heads, 1.0);
    }
    t.near(&y, &x, SUM);
    Ok(())
}

fn rms_norm<T: Float + Number>(t: &mut Trial) -> Result<()> {
    let (x, gain) = (t.values::<T>(5 * 300), t.floats(300));
    let y = RmsNorm::new(&t.context.upload(&gain, [300])?, EPS)
        .forward(&mut t.encoder, &t.context.upload(&x, [5, 300])?)?;
    let x: Vec<f32> = x.into_iter().map(Into::into).collect();
    // Exact but for the rounding to f16.
    t.near(&y, &reference::rms_norm(&x, &gain, EPS)?, 0.0);
    Ok(())
}

fn rms_norm_backward(t: &mut Trial) -> Result<()> {
    let (x, gain, dy) = (t.floats(5 * 300), t.floats(300), t.floats(5 * 300));
    let (x_there, gain_there, dy_there) = (
        t.context.upload(&x, [5, 300])?,
        t.context.upload(&gain, [300])?,
        t.context.upload(&dy, [5, 300])?,
    );
    let (dx, dgain) =
        RmsNorm::new(&gain_there, EPS).backward(&mut t.encoder, &x_there, &dy_there)?;
    let expected = reference::rms_norm_backward(&x, &gain, EPS, &dy)?;
    t.near(&dx, &expected.0, GRADIENT);
    t.near(&dgain, &expected.1, GRADIENT);
    Ok(())
}

fn rms_norm_heads(t: &mut Trial) -> Result<()> {
    let (tokens, dim) = (5, SHAPE.head_dim);
    let (mut qkv, queries, keys) = (t.floats(tokens * SHAPE.row()), t.floats(dim), t.floats(dim));
    let (there, queries_there, keys_there) = (
        t.context.upload(&qkv, [tokens, SHAPE.row()])?,
        t.context.upload(&queries, [dim])?,
        t.context.upload(&keys, [dim])?,
    );
    RmsNormHeads::new(SHAPE, &queries_there, &keys_there, EPS).forward(&mut t.encoder, &there)?;
    reference::rms_norm_heads(&mut qkv, SHAPE, &queries, &keys, EPS)?;
    t.same(&there, qkv);
    Ok(())
}

/// These numbers as a table of each element type.
fn tables(t: &mut Trial, rows: usize, columns: usize) -> Result<[PackedDense; 4]> {
    let values = t.values::<f16>(rows * columns);
    let bytes = |bits: fn(&f16) -> u16| {
        values.iter().map(bits).flat_map(u16::to_le_bytes).collect::<Vec<u8>>()
    };
    let (f16, bf16) = (bytes(|v| v.to_bits()), bytes(|v| (v.to_f32().to_bits() >> 16) as u16));
    let f32 = PackedDense::from_f32(
        rows,
        columns,
        &values.iter().map(|v| v.to_f32()).collect::<Vec<_>>(),
    )?;
    let packed = |element, bytes: &[u8]| PackedDense::from_bytes(element, rows, columns, bytes);
    Ok([f32.quantize(), f32, packed(DenseElement::F16, &f16)?, packed(DenseElement::Bf16, &bf16)?])
}

fn dense_gemv(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (67, 300);
    let x = t.floats(2 * columns);
    let there = t.context.upload(&x, [2, columns])?;
    for w in tables(t, rows, columns)? {
        let y = transformer::dense_gemv(&there, &w.upload(&t.context)?).forward(&mut t.encoder)?;
        t.near(&y, &reference::dense_gemv(&x, &w)?, SUM);
    }
    Ok(())
}

fn embed(t: &mut Trial) -> Result<()> {
    let ids = t.ids(5, 67);
    let there = t.context.upload(&ids, [5])?;
    for table in tables(t, 67, 132)? {
        let y = transformer::embed(&there, &table.upload(&t.context)?).forward(&mut t.encoder)?;
        t.same(&y, reference::embed(&ids, &table)?);
    }
    Ok(())
}

fn embed_ternary(t: &mut Trial) -> Result<()> {
    let (rows, columns, ids) = (67, 300, t.ids(5, 67));
    let values: Vec<i8> = t.ids(rows * columns, 3).into_iter().map(|code| code as i8 - 1).collect();
    let scales = t.floats(rows * columns.div_ceil(128));
    let table =
        PackedTernary::from_values(rows, columns, &values, Scales::Groups { size: 128, scales })?;
    let y = transformer::embed(&t.context.upload(&ids, [5])?, &table.upload(&t.context)?)
        .forward(&mut t.encoder)?;
    t.same(&y, reference::embed_ternary(&ids, &table)?);
    Ok(())
}

/// Two heads that share keys; tokens and head_dim end within every tile.
const HEADS: usize = 2;
const TOKENS: usize = 67;
const DIM: usize = 40;

/// Random queries, keys and values.
struct Flash {
    here: [Vec<f32>; 3],
    there: [Tensor<f32>; 3],
}

impl Flash {
    fn new(t: &mut Trial) -> Result<Self> {
        let shapes = [[HEADS, TOKENS, DIM], [1, TOKENS, DIM], [1, TOKENS, DIM]];
        let here = shapes.map(|shape| t.floats(shape.iter().product()));
        let upload = |i: usize| t.context.upload(&here[i], shapes[i]);
        let there = [upload(0)?, upload(1)?, upload(2)?];
        Ok(Self { here, there })
    }

    fn op(&self) -> FlashAttention<'_, f32> {
        let [q, k, v] = &self.there;
        transformer::flash_attention(q, k, v).causal()
    }

    /// Queries of a head, and the keys and values of all.
    fn head(&self, head: usize) -> [&[f32]; 3] {
        let [q, k, v] = &self.here;
        [&q[head * TOKENS * DIM..][..TOKENS * DIM], k, v]
    }

    /// The results of the reference for the heads, one after another.
    fn expected(&self) -> Result<Vec<(Vec<f32>, Vec<f32>)>> {
        let of_head = |head| reference::flash_attention(self.head(head), DIM, true, None);
        Ok((0..HEADS).map(of_head).collect::<bitnet_wgpu::Result<_>>()?)
    }
}

fn flash_attention(t: &mut Trial) -> Result<()> {
    let flash = Flash::new(t)?;
    let (y, lse) = flash.op().forward(&mut t.encoder)?;
    let (expected_y, expected_lse): (Vec<_>, Vec<_>) = flash.expected()?.into_iter().unzip();
    t.near(&y, &expected_y.concat(), ATTENTION);
    t.near(&lse, &expected_lse.concat(), ATTENTION);
    Ok(())
}

fn flash_attention_backward(t: &mut Trial) -> Result<()> {
    let (flash, dy) = (Flash::new(t)?, t.floats(HEADS * TOKENS * DIM));
    let dy_there = t.context.upload(&dy, [HEADS, TOKENS, DIM])?;
    let (y, lse) = flash.op().forward(&mut t.encoder)?;
    let made = flash.op().backward(&mut t.encoder, &y, &lse, &dy_there)?;
    let (mut dq, mut dk, mut dv) = (Vec::new(), vec![0.0; TOKENS * DIM], vec![0.0; TOKENS * DIM]);
    let heads = flash.expected()?;
    for (head, ((y, lse), dy)) in heads.iter().zip(dy.chunks(TOKENS * DIM)).enumerate() {
        let qkv = flash.head(head);
        let (q, k, v) = reference::flash_attention_backward(qkv, (y, lse), dy, DIM, true, None)?;
        dq.extend(q);
        dk.iter_mut().zip(k).for_each(|(sum, v)| *sum += v);
        dv.iter_mut().zip(v).for_each(|(sum, v)| *sum += v);
    }
    t.near(&made.0, &dq, GRADIENT);
    t.near(&made.1, &dk, GRADIENT);
    t.near(&made.2, &dv, GRADIENT);
    Ok(())
}

fn mask_logits(t: &mut Trial) -> Result<()> {
    let vocab = 1000;
    let (mut logits, mask) = (t.floats(vocab), t.ids(30, 1 << 31));
    let logits_there = t.context.upload(&logits, [1, vocab])?;
    let mask_there = t.context.upload(&mask, [1, mask.len()])?;
    let runs = t.context.upload(&[0, 9], [1, 2])?;
    let positions = CachePositions::new(&runs, 1);
    LogitMasks::new(&mask_there).forward(&mut t.encoder, &logits_there, positions)?;
    reference::mask_logits(&mut logits, &mask);
    t.same(&logits_there, logits);
    Ok(())
}

fn penalize(t: &mut Trial) -> Result<()> {
    let (vocab, token, past) = (1000, 17, 9);
    let (mut logits, mut counts, bias) = (t.floats(vocab), t.ids(vocab, 3), t.floats(vocab));
    let penalties = Penalties::NONE.repetition(1.3).presence(0.6).frequency(0.37);
    let (logits_there, counts_there) =
        (t.context.upload(&logits, [1, vocab])?, t.context.upload(&counts, [1, vocab])?);
    let (bias_there, runs) =
        (t.context.upload(&bias, [1, vocab])?, t.context.upload(&[0, past], [1, 2])?);
    let penalties_there = Penalties::upload(&t.context, &[penalties])?;
    let (tokens, new) = (t.context.upload(&[token], [1])?, CachePositions::new(&runs, 1));
    Penalizer::new(&penalties_there, &bias_there, &counts_there).forward(
        &mut t.encoder,
        &logits_there,
        &tokens,
        new,
    )?;
    reference::penalize(&mut logits, token, &mut counts, &bias, &penalties)?;
    t.same(&logits_there, logits);
    t.same(&counts_there, counts);
    Ok(())
}

/// Sequences that choose in every way. Equal logits give equal tokens on every device.
fn sample(t: &mut Trial) -> Result<()> {
    let (vocab, hot) = (3000, SampleOptions::default().temperature(5.0));
    let options = [
        hot.temperature(0.0),
        hot,
        hot.top_k(40),
        hot.top_p(0.9),
        hot.min_p(0.3),
        hot.top_k(300).top_p(0.5),
    ];
    let draws: Vec<(SampleOptions, u64)> = options.into_iter().zip(77..).collect();
    let (rows, logits) = (draws.len(), t.floats(options.len() * vocab));
    let runs: Vec<u32> = (0..rows as u32).flat_map(|sequence| [sequence, 9]).collect();
    let (there, runs) =
        (t.context.upload(&logits, [rows, vocab])?, t.context.upload(&runs, [rows, 2])?);
    let draws_there = SampleParams::new(&t.context, &draws)?;
    let chosen = transformer::sample(&there, CachePositions::new(&runs, 1), &draws_there)
        .forward(&mut t.encoder)?;
    let expected = logits
        .chunks(vocab)
        .zip(&draws)
        .map(|(row, (options, seed))| reference::sample(row, *seed, 9, options));
    t.same(&chosen, expected.collect::<bitnet_wgpu::Result<_>>()?);
    Ok(())
}

fn route(t: &mut Trial) -> Result<()> {
    let (tokens, experts, used) = (3, 20, 4);
    // A few values, so that many are equal to others.
    let logits: Vec<f32> =
        t.floats(tokens * experts).into_iter().map(|v| (v * 9.0).round()).collect();
    let (chosen, weights) =
        transformer::route(&t.context.upload(&logits, [tokens, experts])?, used)
            .forward(&mut t.encoder)?;
    let rows = logits.chunks(experts).map(|row| reference::route(row, used, true));
    let rows = rows.collect::<bitnet_wgpu::Result<Vec<_>>>()?;
    let (expected_chosen, expected): (Vec<u32>, Vec<f32>) = rows.into_iter().flatten().unzip();
    t.same(&chosen, expected_chosen);
    t.near(&weights, &expected, SUM);
    Ok(())
}

fn top_k(t: &mut Trial) -> Result<()> {
    let (rows, vocab, k) = (3, 5000, 7);
    // A few values, so that many are equal to others.
    let logits: Vec<f32> = t.floats(rows * vocab).into_iter().map(|v| (v * 99.0).round()).collect();
    let (values, ids) = transformer::top_k(&t.context.upload(&logits, [rows, vocab])?, k)
        .forward(&mut t.encoder)?;
    let (expected_ids, expected) =
        logits.chunks(vocab).flat_map(|row| reference::top_k(row, k)).unzip();
    t.same(&ids, expected_ids);
    t.same(&values, expected);
    Ok(())
}
