//! Causal attention to a key-value cache: softmax(q·kᵀ / sqrt(D))·v, in `f32`.

use super::cache::{HostKvCache, KvCache, NewTokens};
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, REDUCE, Source, Work},
    },
    msl, params, wgsl,
};
use rayon::prelude::*;

params! { struct Params { run: u32, sequence: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32, splits: u32, scale: f32 } }
params! { struct CombineParams { heads: u32, head_dim: u32, splits: u32, add: u32 } }

/// Positions that a workgroup looks at together.
const TILE: usize = 128;
/// Rows (heads or tokens with the same keys) that a workgroup of the kernel for few takes.
const FEW_ROWS: usize = 4;

const fn kernel(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] = &[
        read("positions", U32),
        read("qkv", F32),
        read("keys", Float("C")),
        read("values", Float("C")),
        read_write("y", F32),
        read_write("y_weight", F32),
    ];
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry("attention")
}

const WGSL: &[Part] = wgsl![REDUCE, "shared/exp", "transformer/attention"];
const MSL: &[Part] = msl!["shared/prelude", "shared/reduce", "shared/exp", "transformer/attention"];

const fn rows(source: Source, rows: usize) -> Source {
    source.workgroup_size([TILE as u32, 1, 1]).tile([rows as u32, 1, 1]).constants(&[("MAX_QUADS", 64)])
}

/// One token at a time: few heads share keys.
static FEW: Kernel = kernel(
    "attention_few",
    &[rows(Source::wgsl(WGSL), FEW_ROWS).workgroup_bytes(8704), rows(Source::msl(MSL), FEW_ROWS).workgroup_bytes(8320)],
);
static MANY: Kernel = kernel(
    "attention_many",
    // In Metal, scores of 8 rows by a position; in WGSL the loop that loads queries, a few times, has the dearest turn.
    &[
        rows(Source::wgsl(WGSL), 8).workgroup_bytes(14_848),
        rows(Source::msl(MSL), 8).workgroup_bytes(14_464).work(Work::new(8 * 4, "products", 16, 64)),
    ],
);

static COMBINE: Kernel = Kernel::trusted(
    "attention_combine",
    CombineParams::FIELDS,
    &[read("x", F32), read("x_weight", F32), read_write("y", F32)],
    &[
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "shared/exp", "transformer/attention_combine"]).work(Work::new(1, "share", 12, 4)),
        Source::msl(msl!["shared/prelude", "shared/exp", "transformer/attention_combine"]).work(Work::new(1, "share", 12, 4)),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&FEW, &MANY, &COMBINE];

/// Into how many shares the positions of a sequence are best split: one where rows alone keep a GPU busy, else one for every tile of positions,
/// up to a number that a combining kernel reads at no cost. `workgroups` is how many there are without a split.
pub fn attention_splits(workgroups: usize, positions: usize) -> usize {
    const BUSY: usize = 256;
    const MOST: usize = 32;
    let wanted = BUSY.div_ceil(workgroups.max(1)).min(MOST);
    positions.div_ceil(TILE).clamp(1, wanted)
}

/// The attention of the queries in `qkv` `[m, (heads + 2·kv_heads)·D]`, after [`rope`](super::rope) has rotated them and filled `cache`, as
/// `[m, heads·D]`. The positions are split into `splits` shares (see [`attention_splits`]); where there are several, a second dispatch combines them.
///
/// # Errors
/// As [`rope`](super::rope).
pub fn attention(encoder: &mut Encoder, qkv: &Tensor<f32>, new: &NewTokens<'_>, cache: &KvCache, splits: usize) -> Result<Tensor<f32>> {
    let shape = [qkv.shape().as_matrix().0, cache.shape.heads * cache.shape.head_dim];
    let y = Tensor::uninit(encoder.context(), shape)?;
    attention_into(encoder, qkv, new, cache, splits, &y)?;
    Ok(y)
}

/// [`attention`] into a tensor of the caller, `[m, heads·D]`.
///
/// # Errors
/// As [`rope`](super::rope); [`Error::Shape`] if the output does not fit.
pub fn attention_into<'y>(
    encoder: &mut Encoder,
    qkv: &Tensor<f32>,
    new: &NewTokens<'_>,
    cache: &KvCache,
    splits: usize,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    let (op, y) = ("attention", y.into());
    let (tokens, shape) = (qkv.shape().as_matrix().0, cache.shape);
    cache.check_rows(op, qkv, new)?;
    let NewTokens { sequence, run, positions } = *new;
    let width = shape.heads * shape.head_dim;
    y.check(op, tokens, width)?;
    let splits = splits.max(1);
    let params = Params {
        run: run as u32,
        sequence: sequence as u32,
        heads: shape.heads as u32,
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
        capacity: cache.capacity as u32,
        splits: splits as u32,
        scale: (shape.head_dim as f32).sqrt().recip(),
    };
    let rows = run * (shape.heads / shape.kv_heads);
    let kernel = if rows <= FEW_ROWS { &FEW } else { &MANY };
    let context = encoder.context();
    let weights = Tensor::<f32>::uninit(context, [splits, tokens * shape.heads, 2])?;
    let extent = [rows, shape.kv_heads * splits, tokens / run];
    // One share is the result, unless that is to be added.
    if splits == 1 && !y.adds() {
        return encoder.dispatch(kernel, &params, &[positions, qkv, &cache.keys, &cache.values, y.tensor(), &weights], extent);
    }
    let shares = Tensor::<f32>::uninit(context, [splits, tokens, width])?;
    encoder.dispatch(kernel, &params, &[positions, qkv, &cache.keys, &cache.values, &shares, &weights], extent)?;
    let (heads, head_dim, splits) = ((tokens * shape.heads) as u32, shape.head_dim as u32, splits as u32);
    let params = CombineParams { heads, head_dim, splits, add: y.adds().into() };
    encoder.dispatch(&COMBINE, &params, &[&shares, &weights, y.tensor()], [tokens * width, 1, 1])
}

/// The CPU twin, for one sequence whose tokens in `qkv` are the last in `cache`: equal but for the order of float sums and the last bits of exp.
///
/// # Errors
/// [`Error::Length`] if `qkv` is not whole rows; [`Error::Invalid`] if the cache has fewer tokens.
pub fn attention_cpu(qkv: &[f32], cache: &HostKvCache) -> Result<Vec<f32>> {
    let (shape, row) = (cache.shape, cache.shape.row());
    let tokens = qkv.len() / row;
    if !qkv.len().is_multiple_of(row) {
        return Err(Error::Length { shape: [tokens, row].into(), found: qkv.len() });
    }
    let Some(past) = cache.len().checked_sub(tokens) else {
        return Err(Error::Invalid { op: "attention", what: format!("{tokens} tokens, {} in the cache", cache.len()) });
    };
    let dim = shape.head_dim;
    let sharing = shape.heads / shape.kv_heads;
    let stride = shape.kv_heads * dim;
    let scale = (dim as f32).sqrt().recip();
    let mut y = vec![0f32; tokens * shape.heads * dim];
    let head = |(i, out): (usize, &mut [f32])| {
        let (token, head) = (i / shape.heads, i % shape.heads);
        let q: Vec<f32> = qkv[token * row + head * dim..][..dim].iter().map(|v| v * scale).collect();
        let of = |all: &'_ [f32], position: usize| {
            position * stride + head / sharing * dim..all.len().min(position * stride + (head / sharing + 1) * dim)
        };
        let seen = past + token + 1;
        let mut weights: Vec<f32> = (0..seen).map(|p| dot(&q, &cache.keys[of(&cache.keys, p)])).collect();
        let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        weights.iter_mut().for_each(|w| *w = (*w - largest).exp());
        let total: f32 = weights.iter().sum();
        for (p, w) in weights.iter().enumerate() {
            let v = &cache.values[of(&cache.values, p)];
            out.iter_mut().zip(v).for_each(|(o, v)| *o += w * v);
        }
        out.iter_mut().for_each(|o| *o /= total);
    };
    // A thread costs more than a short context.
    if (past + tokens) * tokens * shape.heads * dim < 1 << 18 {
        y.chunks_exact_mut(dim).enumerate().for_each(head);
    } else {
        y.par_chunks_exact_mut(dim).enumerate().for_each(head);
    }
    Ok(y)
}

/// Σ a·b in eight running sums, which compilers turn into vectors.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + tail
}
