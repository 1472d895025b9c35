//! Causal attention to a KV cache, to all of it or to a sliding window: softmax(q·kᵀ / sqrt(D))·v.

use super::{
    attention_params::{BUFFERED_WGSL, COLUMNS, MANY_WGSL, Params, SPAN},
    attention_tensor_cores,
    cache::{AttentionShape, CachePositions, HostKvCache, KvCache},
    rope::rope,
};
use crate::{
    error::{Error, Result},
    gpu::{
        capabilities::Capabilities,
        context::Context,
        encoder::Encoder,
        out::Out,
        recording::{Extent, product},
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{CELLS, HOLE, Part, REDUCE, Source, Work},
    },
    language::ShaderLanguage,
    msl,
    ops::{exp::exp, forward::forward},
    params,
    shape::Shape,
    tuning::TuningKey,
    wgsl,
};
use rayon::prelude::*;

params! { struct CombineParams { run: u32, heads: u32, head_dim: u32, longest: u32, tokens: u32, add: u32, window: u32 } }

const FEW_BINDINGS: &[Binding] = &[
    read("runs", U32),
    read("qkv", F32),
    read("angles", F32),
    read_write("keys", Float("C")),
    read_write("values", Float("C")),
    read_write("y", F32),
    read_write("x", F32),
    read_write("x_weight", F32),
];
const JOINED_BINDINGS: &[Binding] = &[
    read("runs", U32),
    read("qkv", F32),
    read("angles", F32),
    read_write("keys", Float("C")),
    read_write("values", Float("C")),
    read_write("y", F32),
    read_write("x", U32),
    read_write("x_count", U32),
];
const MANY_BINDINGS: &[Binding] = &[
    read("runs", U32),
    read("qkv", F32),
    read("keys", Float("C")),
    read("values", Float("C")),
    read_write("y", F32),
];

/// What the kernels differ in comes last.
const WGSL: &[Part] = wgsl![
    REDUCE,
    CELLS,
    "shared/exp",
    "transformer/attention_rows",
    "transformer/attention_share",
    "transformer/attention_merge",
    HOLE
];
const LEFT: &[Part] =
    wgsl!["transformer/turned", "transformer/attention_left", "transformer/attention_few"];
const JOINED_WGSL: &[Part] =
    wgsl!["transformer/turned", "transformer/attention_joined", "transformer/attention_few"];
const FEW_MSL: &[Part] = msl![
    "shared/prelude",
    "shared/exp",
    "transformer/turned",
    "transformer/attention_rows",
    "transformer/attention_share",
    "transformer/attention_merge",
    "transformer/attention_few"
];
/// `rows` heads and tokens with the same keys a workgroup, four threads a position.
const fn rows(source: Source, rows: u32, bytes: u32) -> Source {
    source
        .workgroup_size([4 * SPAN as u32, 1, 1])
        .tile([rows, 1, 1])
        .constants(&[("SPAN", SPAN as u32), ("MAX_QUADS", 64)])
        .workgroup_bytes(bytes)
}

const fn few(
    name: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, bindings, sources).entry("attention_few")
}

/// A few heads of one token share keys.
static FEW_4: Kernel = few(
    "attention_few_4",
    FEW_BINDINGS,
    &[rows(Source::wgsl(WGSL), 4, 6176), rows(Source::msl(FEW_MSL), 4, 5120)],
)
.fill(LEFT);
static FEW_8: Kernel = few(
    "attention_few_8",
    FEW_BINDINGS,
    &[rows(Source::wgsl(WGSL), 8, 11_296), rows(Source::msl(FEW_MSL), 8, 10_240)],
)
.fill(LEFT);

/// Attention and its final sum in one dispatch, where memory is ordered as it needs.
static JOINED: Kernel =
    few("attention_joined", JOINED_BINDINGS, &[rows(Source::wgsl(WGSL), JOINED_ROWS as u32, 6192)])
        .fill(JOINED_WGSL);

/// In WGSL the dearest turn is that of half a share's values, in Metal that of a quad of the keys.
static MANY: Kernel = Kernel::trusted(
    "attention_many",
    Params::FIELDS,
    MANY_BINDINGS,
    &[
        MANY_WGSL,
        Source::msl(msl![
            "shared/prelude",
            "shared/exp",
            "transformer/attention_rows",
            "transformer/attention_share",
            "transformer/attention_merge",
            "transformer/attention_many"
        ])
        .workgroup_size([256, 1, 1])
        .tile([32, 1, 1])
        .constants(&[
            ("SPAN", SPAN as u32),
            ("MAX_QUADS", 64),
            ("COLUMNS", COLUMNS as u32),
            ("STAGED", 1056),
        ])
        .workgroup_bytes(16 * 1056)
        .work(Work::new(32, "products", 0, 64)),
    ],
)
.fill(wgsl!["transformer/attention_many"]);

/// [`MANY`] for heads of [`COLUMNS`].
static BUFFERED: Kernel =
    Kernel::trusted("attention_buffered", Params::FIELDS, MANY_BINDINGS, &[BUFFERED_WGSL])
        .entry("attention_many")
        .fill(wgsl!["transformer/attention_many"]);

static COMBINE: Kernel = Kernel::trusted(
    "attention_combine",
    CombineParams::FIELDS,
    &[read("runs", U32), read("x", F32), read("x_weight", F32), read_write("y", F32)],
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/exp",
            "transformer/attention_merge",
            "transformer/attention_combine"
        ])
        .constants(&[("SPAN", SPAN as u32)])
        .work(Work::new(1, "share", 24, 10)),
        Source::msl(msl![
            "shared/prelude",
            "shared/exp",
            "transformer/attention_merge",
            "transformer/attention_combine"
        ])
        .constants(&[("SPAN", SPAN as u32)])
        .work(Work::new(1, "share", 24, 10)),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&FEW_4, &FEW_8, &JOINED, &MANY, &BUFFERED, &COMBINE];

const OP: &str = "attention";

/// Attention to a KV cache: what [`attention`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Attention<'a> {
    pub(super) qkv: &'a Tensor<f32>,
    pub(super) positions: CachePositions<'a>,
    pub(super) cache: &'a KvCache,
    angles: Option<&'a Tensor<f32>>,
    max_len: usize,
    f16: bool,
}

/// Causal grouped-query attention of the queries in `qkv` `[m, (heads + 2·kv_heads)·head_dim]` to a
/// KV cache: softmax(q·kᵀ / sqrt(head_dim))·v in `f32`, `[m, heads·head_dim]` (Ainslie et al. 2023,
/// arXiv 2305.13245). The keys and values of the new tokens are in the cache already, by
/// [`rope`](super::rope()), or are put there by the option [`rope`](Attention::rope).
///
/// It is batch-invariant: positions are taken in splits of 64, in one order and with the same
/// roundings for any number of tokens and sequences.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, transformer::{self, CachePositions, KvCache}};
/// # fn f(encoder: &mut Encoder, qkv: &Tensor<f32>, angles: &Tensor<f32>, cache: &KvCache) -> Result<()> {
/// // 16 new tokens of sequence 0, which has had 40.
/// let sequences = encoder.context().upload(&[0u32, 40], [1, 2])?;
/// let positions = CachePositions::new(&sequences, 16);
/// let y = transformer::attention(qkv, positions, cache).rope(angles).max_len(56).forward(encoder)?;
/// # Ok(())
/// # }
/// ```
pub fn attention<'a>(
    qkv: &'a Tensor<f32>,
    positions: CachePositions<'a>,
    cache: &'a KvCache,
) -> Attention<'a> {
    Attention { qkv, positions, cache, angles: None, max_len: cache.capacity, f16: false }
}

forward!(impl['a] Attention<'a> => f32);

impl<'a> Attention<'a> {
    /// Applies [`rope`](super::rope()) first: rotates the queries, and appends keys and values to the
    /// cache. It takes a dispatch less where there is one new token a sequence and few heads share a
    /// key (eight, or four where one dispatch does it all); then `qkv` stays as it is. The bits are
    /// the same.
    pub fn rope(self, angles: &'a Tensor<f32>) -> Self {
        Self { angles: Some(angles), ..self }
    }

    /// Sets the length of the longest sequence, the new tokens among it; the cache's capacity
    /// otherwise. No token may see positions from there on. What becomes of a token whose window
    /// begins there is not defined.
    pub fn max_len(self, tokens: usize) -> Self {
        Self { max_len: tokens.min(self.cache.capacity), ..self }
    }

    /// Allows `f16` attention on tensor cores, up to eight times as fast for prompts. With 64 and more
    /// new tokens a sequence, queries and weights of positions are rounded to `f16`, and products
    /// are added in an order of the device's. Errors are 2⁻¹¹ of a query and of a weight, and 2⁻²⁵
    /// of the largest weight for a position that has next to none; queries beyond 45 000
    /// after their division by √head_dim may give NaN.
    ///
    /// So a token's attention depends on whether it comes with 63 others of its sequence. Runs of 64 tokens
    /// and more are batch-invariant among each other, however a prompt is cut into them.
    ///
    /// It changes nothing for fewer tokens, a cache in `f32`, and without fitting tensor cores
    /// (`Capabilities::tensor_cores`; on GPUs by Apple, Metal has them). It serves heads of 64, 96 and 128
    /// and windows on GPUs by NVIDIA, elsewhere heads of 64 and 128 without a window.
    pub fn f16(self) -> Self {
        Self { f16: true, ..self }
    }

    fn shape(&self) -> Result<Shape> {
        let AttentionShape { heads, head_dim, .. } = self.cache.shape;
        Ok([self.qkv.shape().as_matrix().0, heads * head_dim].into())
    }

    /// Heads and tokens that share keys, and sequences.
    fn rows(&self) -> (usize, usize) {
        let AttentionShape { heads, kv_heads, .. } = self.cache.shape;
        let (tokens, run) = (self.qkv.shape().as_matrix().0, self.positions.tokens);
        (run * (heads / kv_heads), tokens / run)
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let Self { qkv, positions, cache, angles, .. } = self;
        cache.check_rows(OP, qkv, positions)?;
        angles.map_or(Ok(()), |angles| cache.check_angles(OP, angles))?;
        let params = self.params(&y)?;
        let (shape, (rows, sequences), context) = (cache.shape, self.rows(), encoder.context());
        let capabilities = context.capabilities();
        let tensor_cores = if self.f16 && self.max_len > 0 {
            attention_tensor_cores::kernel(capabilities, cache, positions.tokens, rows, sequences)
        } else {
            None
        };
        let plan =
            plan(rows, shape.kv_heads, sequences, shape.head_dim, self.max_len, capabilities);
        // The workgroup that appends a key is the only one that reads it.
        let most = if joins(context) { JOINED_ROWS } else { MOST_FEW };
        let inside = positions.tokens == 1 && rows <= most && plan != Plan::All;
        let many = if buffers(context, shape.head_dim, rows) { &BUFFERED } else { &MANY };
        encoder.transaction(|encoder| {
            if let (Some(angles), false) = (angles, inside) {
                rope(qkv, positions, angles, cache).forward(encoder)?;
            }
            let strips = shape.head_dim.div_ceil(COLUMNS);
            match (tensor_cores, plan) {
                (Some(kernel), _) => self.all(encoder, kernel, 1, &params, y),
                (None, Plan::All) => self.all(encoder, many, strips, &params, y),
                (None, Plan::Shares(shares)) => {
                    let angles = angles.filter(|_| inside);
                    self.shares(encoder, shares, angles, params, y)
                }
            }
        })
    }

    /// Checks that `y` fits, and returns the parameters of the kernels.
    fn params(&self, y: &Out<'_, f32>) -> Result<Params> {
        let (cache, shape) = (self.cache, self.cache.shape);
        y.check(OP, self.qkv.shape().as_matrix().0, shape.heads * shape.head_dim)?;
        let window = cache.window.map(|window| u32::try_from(window).unwrap_or(u32::MAX));
        Ok(Params {
            run: self.positions.tokens as u32,
            sequences: cache.sequences as u32,
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.head_dim as u32,
            capacity: cache.capacity as u32,
            longest: self.max_len as u32,
            rotate: 0,
            add: y.adds().into(),
            window: window.unwrap_or(u32::MAX),
            scale: (shape.head_dim as f32).sqrt().recip(),
        })
    }

    /// This many workgroups for a key head and `rows` rows: a score and a sum over values, for each
    /// position.
    fn extent(&self, each: usize) -> Extent {
        let (shape, (rows, sequences)) = (self.cache.shape, self.rows());
        let work = product(&[2, sequences, rows, shape.kv_heads, shape.head_dim, self.max_len]);
        Extent::with_work([rows, shape.kv_heads * each, sequences], work)
    }

    /// Records a kernel whose workgroups go through all positions, `strips` for each head.
    fn all(
        &self,
        encoder: &mut Encoder,
        kernel: &'static Kernel,
        strips: usize,
        params: &Params,
        y: Out<'_, f32>,
    ) -> Result<()> {
        let KvCache { keys, values, .. } = self.cache;
        let bindings: [&dyn Bind; 5] =
            [self.positions.sequences, self.qkv, keys, values, y.tensor()];
        encoder.dispatch(kernel, params, &bindings, self.extent(strips))
    }

    /// Records a workgroup for each share of positions, and what brings shares together; `angles`
    /// rotate inside.
    fn shares(
        &self,
        encoder: &mut Encoder,
        shares: usize,
        angles: Option<&Tensor<f32>>,
        params: Params,
        y: Out<'_, f32>,
    ) -> Result<()> {
        let (shape, (rows, sequences), extent) =
            (self.cache.shape, self.rows(), self.extent(shares));
        let KvCache { keys, values, .. } = self.cache;
        let (runs, qkv, y) = (self.positions.sequences, self.qkv, y.tensor());
        let tokens = qkv.shape().as_matrix().0;
        let params = Params { rotate: angles.is_some().into(), ..params };
        let angles = angles.unwrap_or(qkv);
        // Of a single share, nothing is left.
        let left = if shares == 1 { 1 } else { shares * tokens * shape.heads };
        if joins(encoder.context()) {
            let groups = rows.div_ceil(JOINED_ROWS) * shape.kv_heads * sequences;
            let x_count = encoder.counters(groups)?;
            let x = encoder.scratch::<u32>(0, [left, 4 * shape.quads() + 2])?;
            let bindings: [&dyn Bind; 8] = [runs, qkv, angles, keys, values, y, &x, &x_count];
            return encoder.dispatch(&JOINED, &params, &bindings, extent);
        }
        let x = encoder.scratch::<f32>(0, [left, 4 * shape.quads()])?;
        let x_weight = encoder.scratch::<f32>(1, [left, 2])?;
        let kernel = if rows <= 4 { &FEW_4 } else { &FEW_8 };
        let bindings: [&dyn Bind; 8] = [runs, qkv, angles, keys, values, y, &x, &x_weight];
        encoder.dispatch(kernel, &params, &bindings, extent)?;
        if shares == 1 {
            return Ok(());
        }
        let Params { run, heads, head_dim, longest, add, window, .. } = params;
        let params =
            CombineParams { run, heads, head_dim, longest, tokens: tokens as u32, add, window };
        let quads = tokens * shape.heads * shape.quads();
        encoder.dispatch(&COMBINE, &params, &[runs, &x, &x_weight, y], [quads, 1, 1])
    }
}

/// Rows of a workgroup at most.
const MOST_FEW: usize = 8;

/// Rows of a workgroup of [`JOINED`]: with eight, eight tokens after 256 take 32 µs in place of 13
/// (H100: "Tokens guessed ahead").
const JOINED_ROWS: usize = 4;

/// Whether the last workgroup of several brings their shares together.
fn joins(context: &Context) -> bool {
    context.capabilities().device_barriers && context.language() == ShaderLanguage::Wgsl
}

/// Whether [`BUFFERED`] takes `rows` rows of a key head and a sequence, in place of [`MANY`].
fn buffers(context: &Context, head_dim: usize, rows: usize) -> bool {
    let capabilities = context.capabilities();
    head_dim == COLUMNS
        && rows >= capabilities.tuned(TuningKey::AttentionBufferedRows)
        && capabilities.max_workgroup_bytes >= BUFFERED_WGSL.workgroup_bytes
        && context.language() == ShaderLanguage::Wgsl
}

/// How an attention is dispatched.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// A workgroup a share, then [`COMBINE`] where there are several.
    Shares(usize),
    /// A workgroup goes through all.
    All,
}

/// Shares are workgroups of their own where rows alone do not keep a GPU busy, as long as there is
/// room for what they leave.
fn plan(
    rows: usize,
    kv_heads: usize,
    sequences: usize,
    head_dim: usize,
    longest: usize,
    capabilities: &Capabilities,
) -> Plan {
    const MOST_FLOATS: usize = 16 << 20;
    let shares = longest.div_ceil(SPAN).max(1);
    let left =
        [rows, kv_heads, sequences, head_dim].iter().fold(shares, |all, &n| all.saturating_mul(n));
    let busy = capabilities.tuned(TuningKey::AttentionSplitWorkgroups);
    let few = rows <= MOST_FEW || rows.div_ceil(MOST_FEW) * kv_heads * sequences < busy;
    if few && (shares == 1 || left <= MOST_FLOATS) { Plan::Shares(shares) } else { Plan::All }
}

/// Bytes that the shares of an attention take at most in a recording, for runs of up to `run`
/// tokens of this many sequences.
#[cfg(feature = "models")]
pub(crate) fn most_share_bytes(
    shape: AttentionShape,
    run: usize,
    sequences: usize,
    longest: usize,
    capabilities: &Capabilities,
) -> u64 {
    let sharing = shape.heads / shape.kv_heads;
    let shares = |run: usize| match plan(
        run * sharing,
        shape.kv_heads,
        sequences,
        shape.head_dim,
        longest,
        capabilities,
    ) {
        Plan::Shares(shares) if shares > 1 => shares * run * sequences * shape.heads,
        _ => 0,
    };
    let most = (1..=run).map(shares).max().unwrap_or(0);
    4 * most as u64 * (4 * shape.quads() as u64 + 2)
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`attention`](super::attention()), for one sequence whose tokens in `qkv` are
    /// the last in `cache`: equal but for the order of float sums and the last bits of exp.
    ///
    /// # Errors
    /// [`Error::Length`] if `qkv` is not whole rows; [`Error::Invalid`] if the cache has fewer
    /// tokens.
    pub fn attention(qkv: &[f32], cache: &HostKvCache) -> Result<Vec<f32>> {
        let (shape, row) = (cache.shape, cache.shape.row());
        let tokens = qkv.len() / row;
        if !qkv.len().is_multiple_of(row) {
            return Err(Error::Length { shape: [tokens, row].into(), found: qkv.len() });
        }
        let Some(past) = cache.len().checked_sub(tokens) else {
            return Err(Error::Invalid {
                op: OP,
                what: format!("{tokens} tokens, {} in the cache", cache.len()),
            });
        };
        let dim = shape.head_dim;
        let sharing = shape.heads / shape.kv_heads;
        let stride = shape.kv_heads * dim;
        let scale = (dim as f32).sqrt().recip();
        let mut y = vec![0f32; tokens * shape.heads * dim];
        let head = |(i, out): (usize, &mut [f32])| {
            let (token, head) = (i / shape.heads, i % shape.heads);
            let q: Vec<f32> =
                qkv[token * row + head * dim..][..dim].iter().map(|v| v * scale).collect();
            let of = |all: &'_ [f32], position: usize| {
                position * stride + head / sharing * dim
                    ..all.len().min(position * stride + (head / sharing + 1) * dim)
            };
            let end = past + token + 1;
            let seen = end - end.min(cache.window.unwrap_or(end))..end;
            let mut weights: Vec<f32> =
                seen.clone().map(|p| dot(&q, &cache.keys[of(&cache.keys, p)])).collect();
            let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            weights.iter_mut().for_each(|w| *w = exp(*w - largest));
            let total: f32 = weights.iter().sum();
            for (p, w) in seen.zip(&weights) {
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

#[cfg(test)]
mod tests {
    use super::{
        Capabilities,
        Plan::{self, *},
    };

    fn plan(
        rows: usize,
        kv_heads: usize,
        sequences: usize,
        head_dim: usize,
        longest: usize,
    ) -> Plan {
        super::plan(rows, kv_heads, sequences, head_dim, longest, &Capabilities::example(false))
    }

    #[test]
    fn shares_keep_a_gpu_busy_and_fit() {
        // One token of BitNet b1.58 2B4T, and four to verify.
        assert_eq!(plan(4, 5, 1, 128, 1), Shares(1));
        assert_eq!(plan(4, 5, 1, 128, 64), Shares(1));
        assert_eq!(plan(4, 5, 1, 128, 65), Shares(2));
        assert_eq!(plan(16, 5, 1, 128, 4096), Shares(64));
        // A prompt.
        assert_eq!(plan(2048, 5, 1, 128, 512), All);
        assert_eq!(plan(4, 5, 0, 128, 0), Shares(1));
        // More than is left in memory for it.
        assert_eq!(plan(4, 5, 64, 128, 1 << 17), All);
    }
}
