//! Attention for training, without a matrix of scores: y = softmax(scale·q·kᵀ)·v, and the logarithm
//! of each row's sum, from which [`flash_attention_backward`](super::flash_attention_backward())
//! computes the scores again. "FlashAttention-2", Dao 2023, arXiv:2307.08691.

use crate::{
    element::{ElementType, Float},
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        recording::{Extent, product},
        tensor::Tensor,
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::transformer::attention::dot,
    params,
    shape::Shape,
    wgsl,
};

params! { struct Params { groups: u32, tokens: u32, dim: u32, sharing: u32, causal: u32, add: u32, scale: f32 } }

/// Queries of a workgroup (keys, of the gradients for them), and keys (queries) that it looks at
/// together.
const ROWS: usize = 64;
const COLUMNS: usize = 32;
/// Columns of an output that a thread adds up together; a workgroup makes twice as many.
const WIDTH: usize = 64;
/// Columns of two matrices, or rows of one, that are staged together.
const DEPTH: usize = 16;
/// From one of them to the next, and between the columns of a tile: one more than there are
/// numbers, so that neighbours meet no bank twice.
const SLICE: usize = ROWS + COLUMNS + 1;
const PITCH: usize = ROWS + 1;

/// In Metal, the distances of rows of DEPTH, COLUMNS and WIDTH numbers: four more than they have,
/// so that neighbours start in different banks.
const METAL_SLICE: usize = DEPTH + 4;
const METAL_PITCH: usize = COLUMNS + 4;
const METAL_LINE: usize = WIDTH + 4;
/// What is staged: rows of two matrices, DEPTH columns of each.
const METAL_STAGED: usize = (ROWS + COLUMNS) * METAL_SLICE;

const fn sized(source: Source, words: usize) -> Source {
    source.workgroup_size([256, 1, 1]).tile([1, 1, 1]).workgroup_bytes(4 * words as u32)
}

/// The numbers of a text with tiles, and of what workgroup memory it has beside them.
pub(super) const fn tiled(source: Source, more_words: usize) -> Source {
    const CONSTANTS: &[(&str, u32)] = &[
        ("ROWS", ROWS as u32),
        ("COLUMNS", COLUMNS as u32),
        ("WIDTH", WIDTH as u32),
        ("DEPTH", DEPTH as u32),
        ("SLICE", SLICE as u32),
        ("PITCH", PITCH as u32),
    ];
    sized(source.constants(CONSTANTS), DEPTH * SLICE + COLUMNS * PITCH + more_words)
}

/// The same of a text in Metal.
pub(super) const fn tiled_msl(source: Source, more_words: usize) -> Source {
    const CONSTANTS: &[(&str, u32)] = &[
        ("ROWS", ROWS as u32),
        ("COLUMNS", COLUMNS as u32),
        ("WIDTH", WIDTH as u32),
        ("DEPTH", DEPTH as u32),
        ("SLICE", METAL_SLICE as u32),
        ("PITCH", METAL_PITCH as u32),
        ("LINE", METAL_LINE as u32),
        ("STAGED", METAL_STAGED as u32),
    ];
    sized(source.constants(CONSTANTS), METAL_STAGED + ROWS * METAL_PITCH + more_words)
}

static FLASH_ATTENTION: Kernel = Kernel::trusted(
    "flash_attention",
    Params::FIELDS,
    &[
        read("q", Float("X")),
        read("k", Float("X")),
        read("v", Float("X")),
        read_write("y", Float("X")),
        read_write("lse", F32),
    ],
    &[
        tiled(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                "shared/exp",
                "shared/log",
                "transformer/flash_attention_tiles",
                "transformer/flash_attention"
            ]),
            256 + ROWS,
        ),
        tiled_msl(
            Source::msl(msl![
                "shared/prelude",
                "shared/exp",
                "shared/log",
                "transformer/flash_attention_tiles",
                "transformer/flash_attention"
            ]),
            9 * ROWS,
        ),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&FLASH_ATTENTION];

/// The widest head of [`flash_attention`].
pub const FLASH_ATTENTION_MAX_DIM: usize = 256;

/// How [`flash_attention`] weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FlashAttentionOptions {
    /// Does a query see only the keys up to its own place?
    pub causal: bool,
    /// What q·k is multiplied with; 1/√d unless given.
    pub scale: Option<f32>,
}

impl FlashAttentionOptions {
    /// A query sees only the keys up to its own place.
    #[must_use]
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    /// q·k is multiplied with `scale`.
    #[must_use]
    pub fn scale(self, scale: f32) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// The scale for heads of `dim` numbers.
    pub(super) fn scale_for(self, dim: usize) -> f32 {
        self.scale.unwrap_or((dim as f32).sqrt().recip())
    }
}

/// Queries, keys and values (`Qkv<&Tensor<T>>`), or something of each: their gradients
/// (`Qkv<Tensor<T>>`), or where these go to (`Qkv<Out<T>>`).
#[derive(Clone, Copy, Debug)]
pub struct Qkv<T> {
    /// `[.., heads, tokens, head_dim]`
    pub q: T,
    /// `[.., kv_heads, tokens, head_dim]`
    pub k: T,
    /// As `k`.
    pub v: T,
}

impl<T> Qkv<T> {
    /// References to all three.
    pub fn as_ref(&self) -> Qkv<&T> {
        Qkv { q: &self.q, k: &self.k, v: &self.v }
    }
}

/// What [`flash_attention`] gives.
#[derive(Clone, Copy, Debug)]
pub struct Attended<Y, L> {
    /// `[.., heads, tokens, head_dim]`
    pub y: Y,
    /// ln Σ e^score of every query, `[.., heads, tokens]`, for the gradients.
    pub lse: L,
}

/// The sizes of an attention, checked.
#[derive(Clone, Copy)]
pub(super) struct Problem {
    pub heads: usize,
    pub kv_heads: usize,
    pub tokens: usize,
    pub dim: usize,
}

impl Problem {
    pub fn of<T: ElementType>(op: &'static str, qkv: Qkv<&Tensor<T>>) -> Result<Self> {
        let misfit = |what, expected: &str, found| {
            Err(Error::Shape { op, what, expected: expected.to_owned(), found })
        };
        let (q, k) = (qkv.q.shape(), qkv.k.shape());
        let (&[ref batch @ .., heads, tokens, dim], &[ref k_batch @ .., kv_heads, k_tokens, k_dim]) =
            (q.dims(), k.dims())
        else {
            return misfit(
                "q or k",
                "[.., heads, tokens, head_dim]",
                if q.rank() < 3 { q } else { k },
            );
        };
        if dim == 0 || dim > FLASH_ATTENTION_MAX_DIM {
            return misfit("q", &format!("a head_dim of 1 to {FLASH_ATTENTION_MAX_DIM}"), q);
        }
        if (batch, tokens, dim) != (k_batch, k_tokens, k_dim)
            || heads.checked_rem(kv_heads) != Some(0)
        {
            return misfit(
                "k",
                &format!("the shape of q, {q}, with as many heads or a divisor of them"),
                k,
            );
        }
        if qkv.v.shape() != k {
            return misfit("v", &k.to_string(), qkv.v.shape());
        }
        let count: usize = batch.iter().product();
        Ok(Self { heads: count * heads, kv_heads: count * kv_heads, tokens, dim })
    }

    /// Query heads that share a key head.
    pub fn sharing(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(1)
    }

    /// The workgroups that make an output of so many heads.
    pub fn groups(&self, heads: usize) -> usize {
        heads * self.tokens.div_ceil(ROWS) * self.dim.div_ceil(2 * WIDTH)
    }

    /// So many workgroups, each of which makes `products` of its rows and all tokens.
    pub fn extent(&self, groups: usize, products: usize) -> Extent {
        Extent::with_work([groups, 1, 1], product(&[groups, ROWS, self.tokens, self.dim, products]))
    }
}

/// softmax(scale·q·kᵀ)·v of every head, with the logarithm of each row's sum. Each head of `k` and
/// `v` is shared by `heads / kv_heads` of `q`, in order (grouped-query attention). Memory for the
/// results is all that it takes: scores exist in tiles. Sums are in `f32`, in an order that follows
/// from the shape, so a device gives the same bits every time. A score that is not finite gives
/// numbers that nobody promises.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, transformer::{self, FlashAttentionOptions, Qkv}};
/// # fn f(encoder: &mut Encoder, q: &Tensor<f32>, k: &Tensor<f32>, v: &Tensor<f32>, dy: &Tensor<f32>) -> Result<()> {
/// let (qkv, causal) = (Qkv { q, k, v }, FlashAttentionOptions::default().causal()); // [heads, tokens, head_dim] each
/// let attended = transformer::flash_attention(encoder, qkv, causal)?;
/// let gradients = transformer::flash_attention_backward(encoder, qkv, &attended, dy, causal)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`flash_attention_into`].
pub fn flash_attention<T: Float>(
    encoder: &mut Encoder,
    qkv: Qkv<&Tensor<T>>,
    options: FlashAttentionOptions,
) -> Result<Attended<Tensor<T>, Tensor<f32>>> {
    let shape = qkv.q.shape();
    Problem::of("flash_attention", qkv)?;
    let made = Attended {
        y: Tensor::uninit(encoder.context(), shape)?,
        lse: Tensor::uninit(encoder.context(), shape.without_last())?,
    };
    flash_attention_into(encoder, qkv, options, Attended { y: Out::set(&made.y), lse: &made.lse })?;
    Ok(made)
}

/// [`flash_attention`] into tensors of the caller; `lse` is overwritten.
///
/// # Errors
/// [`Error::Shape`] unless `q` is `[.., heads, tokens, head_dim]` with a `head_dim` of 1 to
/// [`FLASH_ATTENTION_MAX_DIM`], `k` and `v` are `[.., kv_heads, tokens, head_dim]` where `kv_heads`
/// divides `heads`, and the outputs fit.
pub fn flash_attention_into<T: Float>(
    encoder: &mut Encoder,
    qkv: Qkv<&Tensor<T>>,
    options: FlashAttentionOptions,
    Attended { y, lse }: Attended<Out<'_, T>, &Tensor<f32>>,
) -> Result<()> {
    let op = "flash_attention";
    let problem = Problem::of(op, qkv)?;
    y.check_shape(op, qkv.q.shape())?;
    Out::set(lse).check_shape(op, qkv.q.shape().without_last())?;
    let groups = problem.groups(problem.heads);
    let params = Params {
        groups: groups as u32,
        tokens: problem.tokens as u32,
        dim: problem.dim as u32,
        sharing: problem.sharing() as u32,
        causal: options.causal.into(),
        add: y.adds().into(),
        scale: options.scale_for(problem.dim),
    };
    encoder.dispatch(
        &FLASH_ATTENTION,
        &params,
        &[qkv.q, qkv.k, qkv.v, y.tensor(), lse],
        problem.extent(groups, 2),
    )
}

/// Are they matrices of `dim` columns, and of one size? Gives their rows.
pub(super) fn rows_cpu(dim: usize, matrices: &[&[f32]]) -> Result<usize> {
    let tokens = matrices[0].len().checked_div(dim).unwrap_or(0);
    match matrices.iter().find(|matrix| tokens.checked_mul(dim) != Some(matrix.len()) || dim == 0) {
        Some(odd) => Err(Error::Length { shape: Shape::from([tokens, dim]), found: odd.len() }),
        None => Ok(tokens),
    }
}

/// The CPU twin of [`flash_attention`], of one head: `[tokens, dim]` each, and `lse` `[tokens]`. As
/// close as sums in `f32` are, in another order.
///
/// # Errors
/// [`Error::Length`] if they are not of one size, or not whole rows.
pub fn flash_attention_cpu(
    qkv: Qkv<&[f32]>,
    dim: usize,
    options: FlashAttentionOptions,
) -> Result<Attended<Vec<f32>, Vec<f32>>> {
    let tokens = rows_cpu(dim, &[qkv.q, qkv.k, qkv.v])?;
    let (scale, mut y, mut lse) =
        (options.scale_for(dim), vec![0f32; tokens * dim], Vec::with_capacity(tokens));
    for (i, (q, y)) in qkv.q.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).enumerate() {
        let seen = if options.causal { i + 1 } else { tokens };
        let scores: Vec<f32> =
            qkv.k.chunks_exact(dim).take(seen).map(|k| dot(q, k) * scale).collect();
        let largest = scores.iter().copied().fold(f32::MIN, f32::max);
        let mut total = 0f32;
        for (score, v) in scores.iter().zip(qkv.v.chunks_exact(dim)) {
            let weight = (score - largest).exp();
            total += weight;
            y.iter_mut().zip(v).for_each(|(y, v)| *y += weight * v);
        }
        y.iter_mut().for_each(|y| *y /= total);
        lse.push(largest + total.ln());
    }
    Ok(Attended { y, lse })
}
