//! Causal attention to a key-value cache, to all of it or to a window: softmax(q·kᵀ / sqrt(D))·v,
//! in `f32`.

use super::cache::{AttentionShape, HostKvCache, KvCache, NewTokens};
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
    ops::exp::exp,
    params,
    tuning::TuningKey,
    wgsl,
};
use rayon::prelude::*;

params! {
    pub(super) struct Params {
        run: u32, sequences: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32, longest: u32, rotate: u32, add: u32, window: u32,
        scale: f32,
    }
}
params! { struct CombineParams { run: u32, heads: u32, head_dim: u32, longest: u32, tokens: u32, add: u32, window: u32 } }

/// Positions of a share.
pub(super) const SPAN: usize = 64;

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

/// The same in one dispatch, where memory is ordered as it needs.
static JOINED: Kernel =
    few("attention_joined", JOINED_BINDINGS, &[rows(Source::wgsl(WGSL), JOINED_ROWS as u32, 6192)])
        .fill(JOINED_WGSL);

/// Columns of a row that a workgroup of [`MANY`] makes.
const COLUMNS: usize = 128;

/// Tiles of 32 rows, for a prompt; the entry point comes last.
pub(super) const MANY_WGSL: Source = Source::wgsl(wgsl![
    "shared/ids",
    "shared/exp",
    "transformer/attention_rows",
    "transformer/attention_merge",
    "transformer/attention_all",
    HOLE
])
.workgroup_size([128, 1, 1])
.tile([32, 1, 1])
.constants(&[("SPAN", SPAN as u32), ("COLUMNS", COLUMNS as u32)])
.workgroup_bytes(16_384)
.work(Work::new(512, "products", 64, 1024));

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

pub(super) const KERNELS: &[&Kernel] = &[&FEW_4, &FEW_8, &JOINED, &MANY, &COMBINE];

/// The attention of the queries in `qkv` `[m, (heads + 2·kv_heads)·D]`, after [`rope`](super::rope)
/// has rotated them and filled `cache`, as `[m, heads·D]`. No token may see positions from
/// `longest` on (what becomes of one whose window begins there is not defined), and where the cache
/// has a window ([`KvCache::with_window`]), it sees the last so many, itself included.
///
/// Positions are taken in shares of 64, in one order and with the same roundings however many
/// tokens and sequences there are: on a device, a token's attention is the same bits alone and in
/// company.
///
/// # Errors
/// As [`rope`](super::rope).
pub fn attention(
    encoder: &mut Encoder,
    qkv: &Tensor<f32>,
    new: &NewTokens<'_>,
    cache: &KvCache,
    longest: usize,
) -> Result<Tensor<f32>> {
    let shape = [qkv.shape().as_matrix().0, cache.shape.heads * cache.shape.head_dim];
    let y = Tensor::uninit(encoder.context(), shape)?;
    attention_into(encoder, qkv, new, cache, longest, &y)?;
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
    longest: usize,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    cache.check_rows("attention", qkv, new)?;
    record(encoder, qkv, new, None, cache, longest, y.into())
}

/// [`rope`](super::rope) and [`attention_into`] in one dispatch less, where there is one new token
/// a sequence and few heads share a key (eight, or four where one dispatch does it all): what is in
/// `qkv` is not rotated then. The same bits.
///
/// # Errors
/// As [`rope`](super::rope) and [`attention_into`].
pub fn rope_attention_into<'y>(
    encoder: &mut Encoder,
    qkv: &Tensor<f32>,
    new: &NewTokens<'_>,
    angles: &Tensor<f32>,
    cache: &KvCache,
    longest: usize,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    cache.check_rows("rope", qkv, new)?;
    cache.check_angles("rope", angles)?;
    let (tokens, AttentionShape { heads, kv_heads, head_dim }) =
        (qkv.shape().as_matrix().0, cache.shape);
    let capabilities = encoder.context().capabilities();
    let shares = plan(
        heads / kv_heads,
        kv_heads,
        tokens,
        head_dim,
        longest.min(cache.capacity),
        capabilities,
    );
    // The workgroup that appends a key is the only one that reads it.
    let most = if joins(encoder.context()) { JOINED_ROWS } else { MOST_FEW };
    let inside = new.run == 1 && heads / kv_heads <= most && shares != Plan::All;
    encoder.whole(|encoder| {
        if !inside {
            super::rope::rope(encoder, qkv, new, angles, cache)?;
        }
        record(encoder, qkv, new, inside.then_some(angles), cache, longest, y.into())
    })
}

/// Rows of a workgroup at most.
const MOST_FEW: usize = 8;

/// Rows of a workgroup of [`JOINED`]: with eight, eight tokens after 256 take 32 µs in place of 13
/// (H100: "Tokens guessed ahead").
const JOINED_ROWS: usize = 4;

/// Does the last workgroup of several bring their shares together?
fn joins(context: &Context) -> bool {
    context.capabilities().device_barriers && context.language() == ShaderLanguage::Wgsl
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
    let busy = capabilities.tuned(TuningKey::AttentionWorkgroups);
    let few = rows <= MOST_FEW || rows.div_ceil(MOST_FEW) * kv_heads * sequences < busy;
    if few && (shares == 1 || left <= MOST_FLOATS) { Plan::Shares(shares) } else { Plan::All }
}

/// Bytes that the shares of an attention take at most in a recording, for runs of up to `run`
/// tokens of so many sequences.
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

/// What the kernels are told, once `y` is known to fit; `qkv` has been checked.
pub(super) fn params(
    qkv: &Tensor<f32>,
    new: &NewTokens<'_>,
    cache: &KvCache,
    longest: usize,
    y: &Out<'_, f32>,
) -> Result<Params> {
    let shape = cache.shape;
    y.check("attention", qkv.shape().as_matrix().0, shape.heads * shape.head_dim)?;
    Ok(Params {
        run: new.run as u32,
        sequences: cache.sequences as u32,
        heads: shape.heads as u32,
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
        capacity: cache.capacity as u32,
        longest: longest.min(cache.capacity) as u32,
        rotate: 0,
        add: y.adds().into(),
        window: cache.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX)),
        scale: (shape.head_dim as f32).sqrt().recip(),
    })
}

/// Records it; `angles` rotate inside. `qkv` has been checked.
fn record(
    encoder: &mut Encoder,
    qkv: &Tensor<f32>,
    new: &NewTokens<'_>,
    angles: Option<&Tensor<f32>>,
    cache: &KvCache,
    longest: usize,
    y: Out<'_, f32>,
) -> Result<()> {
    let (tokens, shape) = (qkv.shape().as_matrix().0, cache.shape);
    let NewTokens { run, runs } = *new;
    let params =
        Params { rotate: angles.is_some().into(), ..params(qkv, new, cache, longest, &y)? };
    let longest = longest.min(cache.capacity);
    let (rows, sequences) = (run * (shape.heads / shape.kv_heads), tokens / run);
    let (keys, values, y) = (&cache.keys, &cache.values, y.tensor());
    let context = encoder.context();
    // A score and a sum over values, for each position.
    let multiply_adds = product(&[2, sequences, rows, shape.kv_heads, shape.head_dim, longest]);
    let plan =
        plan(rows, shape.kv_heads, sequences, shape.head_dim, longest, context.capabilities());
    // What rotates inside must be of few.
    let Plan::Shares(shares) = plan else {
        let bindings: [&dyn Bind; 5] = [runs, qkv, keys, values, y];
        let strips = shape.head_dim.div_ceil(COLUMNS);
        return encoder.dispatch(
            &MANY,
            &params,
            &bindings,
            Extent::with_work([rows, shape.kv_heads * strips, sequences], multiply_adds),
        );
    };
    // Of a single share, nothing is left.
    let left = if shares == 1 { 1 } else { shares * tokens * shape.heads };
    let extent = Extent::with_work([rows, shape.kv_heads * shares, sequences], multiply_adds);
    let angles = angles.unwrap_or(qkv);
    if joins(context) {
        let x_count = encoder.counters(rows.div_ceil(JOINED_ROWS) * shape.kv_heads * sequences)?;
        let x = encoder.scratch::<u32>(0, [left, 4 * shape.quads() + 2])?;
        return encoder.dispatch(
            &JOINED,
            &params,
            &[runs, qkv, angles, keys, values, y, &x, &x_count],
            extent,
        );
    }
    let x = encoder.scratch::<f32>(0, [left, 4 * shape.quads()])?;
    let x_weight = encoder.scratch::<f32>(1, [left, 2])?;
    let kernel = if rows <= 4 { &FEW_4 } else { &FEW_8 };
    encoder.dispatch(
        kernel,
        &params,
        &[runs, qkv, angles, keys, values, y, &x, &x_weight],
        extent,
    )?;
    if shares == 1 {
        return Ok(());
    }
    let Params { run, heads, head_dim, longest, add, window, .. } = params;
    let params =
        CombineParams { run, heads, head_dim, longest, tokens: tokens as u32, add, window };
    encoder.dispatch(
        &COMBINE,
        &params,
        &[runs, &x, &x_weight, y],
        [tokens * shape.heads * shape.quads(), 1, 1],
    )
}

/// The CPU twin, for one sequence whose tokens in `qkv` are the last in `cache`: equal but for the
/// order of float sums and the last bits of exp.
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
        return Err(Error::Invalid {
            op: "attention",
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
