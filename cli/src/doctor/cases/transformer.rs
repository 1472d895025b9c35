//! The rest of a transformer: embeddings, norms, rotary positions, attention, sampling.

use super::{Case, SUM, case, half};
use crate::doctor::{
    compare::{Bound, Number},
    trial::Trial,
};
use anyhow::Result;
use bitnet_wgpu::{
    Element, Float, Tensor, f16,
    transformer::{
        self, Attended, AttentionShape, Draws, FlashAttentionOptions, HostKvCache, KvCache,
        NewTokens, Penalties, Qkv, SampleOptions, TopK,
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
    case("transformer::penalize", penalize),
    case("transformer::rms_norm", rms_norm::<f32>),
    half("transformer::rms_norm, f16", rms_norm::<f16>),
    case("transformer::rms_norm_backward", rms_norm_backward),
    case("transformer::rms_norm_heads", rms_norm_heads),
    case("transformer::rope", rope),
    case("transformer::rotate", rotate),
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
fn halves(t: &mut Trial, len: usize) -> Vec<f32> {
    t.values::<f16>(len).into_iter().map(Into::into).collect()
}

/// New tokens after 70 others, in the first of two sequences: two splits of the cache and a part of
/// one.
fn attention(t: &mut Trial, run: usize, element: Element) -> Result<()> {
    let (past, capacity) = (70, 99);
    let width = SHAPE.kv_heads * SHAPE.head_dim;
    let (keys, values) = (halves(t, (past + run) * width), halves(t, (past + run) * width));
    let qkv = halves(t, run * SHAPE.row());
    let host = HostKvCache::from_parts(SHAPE, keys, values)?;
    let cache = KvCache::new(&t.context, SHAPE, 2, capacity, element)?;
    cache.write(&[host.clone(), HostKvCache::new(SHAPE)?])?;
    let runs = t.context.upload(&[0, past as u32], [1, 2])?;
    let y = transformer::attention(
        &mut t.encoder,
        &t.context.upload(&qkv, [run, SHAPE.row()])?,
        &NewTokens { run, runs: &runs },
        &cache,
        capacity,
    )?;
    t.near(&y, &transformer::attention_cpu(&qkv, &host)?, ATTENTION);
    Ok(())
}

fn rope(t: &mut Trial) -> Result<()> {
    let (run, capacity) = (5, 9);
    let (mut qkv, angles) = (t.floats(run * SHAPE.row()), angles(capacity));
    let cache = KvCache::new(&t.context, SHAPE, 1, capacity, Element::F32)?;
    let (there, runs) =
        (t.context.upload(&qkv, [run, SHAPE.row()])?, t.context.upload(&[0, 0], [1, 2])?);
    let angles_there = t.context.upload(&angles, [capacity, SHAPE.head_dim / 2, 2])?;
    transformer::rope(
        &mut t.encoder,
        &there,
        &NewTokens { run, runs: &runs },
        &angles_there,
        &cache,
    )?;
    let mut host = HostKvCache::new(SHAPE)?;
    transformer::rope_cpu(&mut qkv, &angles, &mut host)?;
    // Keys and values may stay in the rows or not: the cache has them.
    let read = move || Ok(block_on(cache.read(&[run])?)?.remove(0));
    t.check(Bound::Within(SUM), read, &host);
    Ok(())
}

fn rotate(t: &mut Trial) -> Result<()> {
    let (tokens, heads, dim, start) = (5, 4, SHAPE.head_dim, 3);
    let (mut x, angles) = (t.floats(tokens * heads * dim), angles(start + tokens));
    let there = t.context.upload(&x, [tokens, heads, dim])?;
    let y = transformer::rotate(
        &mut t.encoder,
        &there,
        &t.context.upload(&angles, [start + tokens, dim / 2, 2])?,
        start,
    )?;
    for (head, x) in x.chunks_mut(dim).enumerate() {
        transformer::rotate_cpu(x, &angles, start + head / heads, 1.0);
    }
    t.near(&y, &x, SUM);
    Ok(())
}

fn rms_norm<T: Float + Number>(t: &mut Trial) -> Result<()> {
    let (x, gain) = (t.values::<T>(5 * 300), t.floats(300));
    let y = transformer::rms_norm(
        &mut t.encoder,
        &t.context.upload(&x, [5, 300])?,
        &t.context.upload(&gain, [300])?,
        EPS,
    )?;
    let x: Vec<f32> = x.into_iter().map(Into::into).collect();
    // Exact but for the rounding to f16.
    t.near(&y, &transformer::rms_norm_cpu(&x, &gain, EPS)?, 0.0);
    Ok(())
}

fn rms_norm_backward(t: &mut Trial) -> Result<()> {
    let (x, gain, dy) = (t.floats(5 * 300), t.floats(300), t.floats(5 * 300));
    let (x_there, gain_there, dy_there) = (
        t.context.upload(&x, [5, 300])?,
        t.context.upload(&gain, [300])?,
        t.context.upload(&dy, [5, 300])?,
    );
    let gradients =
        transformer::rms_norm_backward(&mut t.encoder, &x_there, &gain_there, EPS, &dy_there)?;
    let expected = transformer::rms_norm_backward_cpu(&x, &gain, EPS, &dy)?;
    t.near(&gradients.x, &expected.x, GRADIENT);
    t.near(&gradients.gain, &expected.gain, GRADIENT);
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
    transformer::rms_norm_heads(&mut t.encoder, &there, SHAPE, &queries_there, &keys_there, EPS)?;
    transformer::rms_norm_heads_cpu(&mut qkv, SHAPE, &queries, &keys, EPS)?;
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
        let y = transformer::dense_gemv(&mut t.encoder, &there, &w.upload(&t.context)?)?;
        t.near(&y, &transformer::dense_gemv_cpu(&x, &w)?, SUM);
    }
    Ok(())
}

fn embed(t: &mut Trial) -> Result<()> {
    let ids = t.ids(5, 67);
    let there = t.context.upload(&ids, [5])?;
    for table in tables(t, 67, 132)? {
        let y = transformer::embed(&mut t.encoder, &there, &table.upload(&t.context)?)?;
        t.same(&y, transformer::embed_cpu(&ids, &table)?);
    }
    Ok(())
}

fn embed_ternary(t: &mut Trial) -> Result<()> {
    let (rows, columns, ids) = (67, 300, t.ids(5, 67));
    let values: Vec<i8> = t.ids(rows * columns, 3).into_iter().map(|code| code as i8 - 1).collect();
    let scales = t.floats(rows * columns.div_ceil(128));
    let table =
        PackedTernary::from_values(rows, columns, &values, Scales::Groups { size: 128, scales })?;
    let y = transformer::embed_ternary(
        &mut t.encoder,
        &t.context.upload(&ids, [5])?,
        &table.upload(&t.context)?,
    )?;
    t.same(&y, transformer::embed_ternary_cpu(&ids, &table)?);
    Ok(())
}

/// Two heads that share keys; tokens and head_dim end within every tile.
const HEADS: usize = 2;
const TOKENS: usize = 67;
const DIM: usize = 40;

/// Random queries, keys and values.
struct Flash {
    here: Qkv<Vec<f32>>,
    there: Qkv<Tensor<f32>>,
    options: FlashAttentionOptions,
}

impl Flash {
    fn new(t: &mut Trial) -> Result<Self> {
        let here = Qkv {
            q: t.floats(HEADS * TOKENS * DIM),
            k: t.floats(TOKENS * DIM),
            v: t.floats(TOKENS * DIM),
        };
        let shared = [1, TOKENS, DIM];
        let there = Qkv {
            q: t.context.upload(&here.q, [HEADS, TOKENS, DIM])?,
            k: t.context.upload(&here.k, shared)?,
            v: t.context.upload(&here.v, shared)?,
        };
        Ok(Self { here, there, options: FlashAttentionOptions::default().causal() })
    }

    /// Queries of a head, and the keys and values of all.
    fn head(&self, head: usize) -> Qkv<&[f32]> {
        Qkv {
            q: &self.here.q[head * TOKENS * DIM..][..TOKENS * DIM],
            k: &self.here.k,
            v: &self.here.v,
        }
    }

    /// What the reference makes of the heads, one after another.
    fn expected(&self) -> Result<Vec<Attended<Vec<f32>, Vec<f32>>>> {
        (0..HEADS)
            .map(|head| Ok(transformer::flash_attention_cpu(self.head(head), DIM, self.options)?))
            .collect()
    }
}

fn flash_attention(t: &mut Trial) -> Result<()> {
    let flash = Flash::new(t)?;
    let made = transformer::flash_attention(&mut t.encoder, flash.there.as_ref(), flash.options)?;
    let (y, lse): (Vec<_>, Vec<_>) =
        flash.expected()?.into_iter().map(|head| (head.y, head.lse)).unzip();
    t.near(&made.y, &y.concat(), ATTENTION);
    t.near(&made.lse, &lse.concat(), ATTENTION);
    Ok(())
}

fn flash_attention_backward(t: &mut Trial) -> Result<()> {
    let (flash, dy) = (Flash::new(t)?, t.floats(HEADS * TOKENS * DIM));
    let dy_there = t.context.upload(&dy, [HEADS, TOKENS, DIM])?;
    let made = transformer::flash_attention(&mut t.encoder, flash.there.as_ref(), flash.options)?;
    let gradients = transformer::flash_attention_backward(
        &mut t.encoder,
        flash.there.as_ref(),
        &made,
        &dy_there,
        flash.options,
    )?;
    let (mut dq, mut dk, mut dv) = (Vec::new(), vec![0.0; TOKENS * DIM], vec![0.0; TOKENS * DIM]);
    for (head, (attended, dy)) in flash.expected()?.iter().zip(dy.chunks(TOKENS * DIM)).enumerate()
    {
        let of_head = transformer::flash_attention_backward_cpu(
            flash.head(head),
            attended,
            dy,
            DIM,
            flash.options,
        )?;
        dq.extend(of_head.q);
        dk.iter_mut().zip(of_head.k).for_each(|(sum, v)| *sum += v);
        dv.iter_mut().zip(of_head.v).for_each(|(sum, v)| *sum += v);
    }
    t.near(&gradients.q, &dq, GRADIENT);
    t.near(&gradients.k, &dk, GRADIENT);
    t.near(&gradients.v, &dv, GRADIENT);
    Ok(())
}

fn penalize(t: &mut Trial) -> Result<()> {
    let (vocab, token, past) = (1000, 17, 9);
    let (mut logits, mut counts, bias) = (t.floats(vocab), t.ids(vocab, 3), t.floats(vocab));
    let penalties = Penalties::new(1.3, 0.6, 0.37);
    let (logits_there, counts_there) =
        (t.context.upload(&logits, [1, vocab])?, t.context.upload(&counts, [1, vocab])?);
    let (bias_there, runs) =
        (t.context.upload(&bias, [1, vocab])?, t.context.upload(&[0, past], [1, 2])?);
    let penalties_there = Penalties::upload(&t.context, &[penalties])?;
    let (tokens, new) = (t.context.upload(&[token], [1])?, NewTokens { run: 1, runs: &runs });
    transformer::penalize(
        &mut t.encoder,
        &logits_there,
        &tokens,
        &new,
        &counts_there,
        &bias_there,
        &penalties_there,
    )?;
    transformer::penalize_cpu(&mut logits, token, &mut counts, &bias, &penalties)?;
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
    let draws_there = Draws::new(&t.context, &draws)?;
    let chosen = transformer::sample(
        &mut t.encoder,
        &there,
        &NewTokens { run: 1, runs: &runs },
        &draws_there,
    )?;
    let expected = logits
        .chunks(vocab)
        .zip(&draws)
        .map(|(row, (options, seed))| transformer::sample_cpu(row, *seed, 9, options));
    t.same(&chosen, expected.collect::<bitnet_wgpu::Result<_>>()?);
    Ok(())
}

fn top_k(t: &mut Trial) -> Result<()> {
    let (rows, vocab, k) = (3, 5000, 7);
    // A few values, so that many are equal to others.
    let logits: Vec<f32> = t.floats(rows * vocab).into_iter().map(|v| (v * 99.0).round()).collect();
    let TopK { ids, logits: values, .. } =
        transformer::top_k(&mut t.encoder, &t.context.upload(&logits, [rows, vocab])?, k)?;
    let (expected_ids, expected) =
        logits.chunks(vocab).flat_map(|row| transformer::top_k_cpu(row, k)).unzip();
    t.same(&ids, expected_ids);
    t.same(&values, expected);
    Ok(())
}
