//! Attention for training, without a matrix of scores: y = softmax(scale·q·kᵀ)·v, and the logarithm
//! of each row's sum, from which [`FlashAttention::backward`]
//! computes the scores again. "FlashAttention-2", Dao 2023, arXiv:2307.08691.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        recording::{Extent, product},
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::transformer::{attention::dot, cache::AttentionShape},
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
/// numbers, so that neighbors meet no bank twice.
const SLICE: usize = ROWS + COLUMNS + 1;
const PITCH: usize = ROWS + 1;

/// In Metal, the distances of rows of DEPTH, COLUMNS and WIDTH numbers: four more than they have,
/// so that neighbors start in different banks.
const METAL_SLICE: usize = DEPTH + 4;
const METAL_PITCH: usize = COLUMNS + 4;
const METAL_LINE: usize = WIDTH + 4;
/// What is staged: rows of two matrices, DEPTH columns of each.
const METAL_STAGED: usize = (ROWS + COLUMNS) * METAL_SLICE;

const fn sized(source: Source, words: usize) -> Source {
    source.workgroup_size([256, 1, 1]).tile([1, 1, 1]).workgroup_bytes(4 * words as u32)
}

/// The numbers of a source with tiles, and of what workgroup memory it has beside them.
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

/// Sets the tile constants of a Metal source.
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

const OP: &str = "flash_attention";

/// Attention for training: what [`flash_attention`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct FlashAttention<'a, T> {
    pub(super) q: &'a Tensor<T>,
    pub(super) k: &'a Tensor<T>,
    pub(super) v: &'a Tensor<T>,
    pub(super) causal: bool,
    scale: Option<f32>,
}

/// softmax(scale·q·kᵀ)·v of every head, with q `[.., heads, tokens, head_dim]`, k and v
/// `[.., kv_heads, tokens, head_dim]`; scale is 1/√head_dim. Each head of k and v is shared by
/// heads / kv_heads of q, in order (grouped-query attention). Memory is that of the results: scores
/// exist in tiles only. Sums are in `f32`, in an order that follows from the shape, so a device
/// is bit-identical every time. A score that is not finite gives undefined numbers.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, transformer};
/// # fn f(encoder: &mut Encoder, q: &Tensor<f32>, k: &Tensor<f32>, v: &Tensor<f32>, dy: &Tensor<f32>) -> Result<()> {
/// let attention = transformer::flash_attention(q, k, v).causal();
/// let (y, lse) = attention.forward(encoder)?;
/// let (dq, dk, dv) = attention.backward(encoder, &y, &lse, dy)?;
/// # Ok(())
/// # }
/// ```
pub fn flash_attention<'a, T: Float>(
    q: &'a Tensor<T>,
    k: &'a Tensor<T>,
    v: &'a Tensor<T>,
) -> FlashAttention<'a, T> {
    FlashAttention { q, k, v, causal: false, scale: None }
}

impl<T: Float> FlashAttention<'_, T> {
    /// A query sees only the keys up to its own position.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    /// Sets what q·k is multiplied with.
    pub fn scale(self, scale: f32) -> Self {
        Self { scale: Some(scale), ..self }
    }

    pub(super) fn scale_or_default(&self, dim: usize) -> f32 {
        self.scale.unwrap_or((dim as f32).sqrt().recip())
    }

    /// Records the op. Returns y, of the shape of q, and ln Σ e^score of every query,
    /// `[.., heads, tokens]`, from which `backward` computes the scores again.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes do not fit, or `head_dim` is not 1 to
    /// [`AttentionShape::MAX_DIM`].
    pub fn forward(self, encoder: &mut Encoder) -> Result<(Tensor<T>, Tensor<f32>)> {
        Problem::of(OP, &self)?;
        let shape = self.q.shape();
        let y = Tensor::uninit(encoder.context(), shape)?;
        let lse = Tensor::uninit(encoder.context(), shape.without_last())?;
        self.forward_into(encoder, &y, &lse)?;
        Ok((y, lse))
    }

    /// Like [`forward`](Self::forward), into tensors of the caller; `lse` is overwritten.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if the outputs do not fit.
    pub fn forward_into<'out>(
        self,
        encoder: &mut Encoder,
        y: impl Into<Out<'out, T>>,
        lse: &Tensor<f32>,
    ) -> Result<()> {
        let (problem, y, Self { q, k, v, .. }) = (Problem::of(OP, &self)?, y.into(), self);
        y.check_shape(OP, q.shape())?;
        Out::set(lse).check_shape(OP, q.shape().without_last())?;
        let groups = problem.groups(problem.heads);
        let params = Params {
            groups: groups as u32,
            tokens: problem.tokens as u32,
            dim: problem.dim as u32,
            sharing: problem.sharing() as u32,
            causal: self.causal.into(),
            add: y.adds().into(),
            scale: self.scale_or_default(problem.dim),
        };
        let bindings: [&dyn Bind; 5] = [q, k, v, y.tensor(), lse];
        encoder.dispatch(&FLASH_ATTENTION, &params, &bindings, problem.extent(groups, 2))
    }
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
    pub fn of<T: Float>(op: &'static str, attention: &FlashAttention<'_, T>) -> Result<Self> {
        let FlashAttention { q, k, v, .. } = attention;
        let misfit = |what, expected: &str, found| {
            Err(Error::Shape { op, what, expected: expected.to_owned(), found })
        };
        let (q, k, v) = (q.shape(), k.shape(), v.shape());
        let (&[ref batch @ .., heads, tokens, dim], &[ref k_batch @ .., kv_heads, k_tokens, k_dim]) =
            (q.dims(), k.dims())
        else {
            let found = if q.rank() < 3 { q } else { k };
            return misfit("q or k", "[.., heads, tokens, head_dim]", found);
        };
        if dim == 0 || dim > AttentionShape::MAX_DIM {
            return misfit("q", &format!("a head_dim of 1 to {}", AttentionShape::MAX_DIM), q);
        }
        if (batch, tokens, dim) != (k_batch, k_tokens, k_dim)
            || heads.checked_rem(kv_heads) != Some(0)
        {
            let expected = format!("the shape of q, {q}, with as many heads or a divisor of them");
            return misfit("k", &expected, k);
        }
        if v != k {
            return misfit("v", &k.to_string(), v);
        }
        let count: usize = batch.iter().product();
        Ok(Self { heads: count * heads, kv_heads: count * kv_heads, tokens, dim })
    }

    /// Query heads that share a key head.
    pub fn sharing(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(1)
    }

    /// The workgroups that make an output of this many heads.
    pub fn groups(&self, heads: usize) -> usize {
        heads * self.tokens.div_ceil(ROWS) * self.dim.div_ceil(2 * WIDTH)
    }

    /// This many workgroups, each of which makes `products` of its rows and all tokens.
    pub fn extent(&self, groups: usize, products: usize) -> Extent {
        Extent::with_work([groups, 1, 1], product(&[groups, ROWS, self.tokens, self.dim, products]))
    }
}

/// Checks that these are matrices of `dim` columns and of one size, and returns their rows.
pub(super) fn rows_of(dim: usize, matrices: &[&[f32]]) -> Result<usize> {
    let tokens = matrices[0].len().checked_div(dim).unwrap_or(0);
    match matrices.iter().find(|matrix| tokens.checked_mul(dim) != Some(matrix.len()) || dim == 0) {
        Some(odd) => Err(Error::Length { shape: Shape::from([tokens, dim]), found: odd.len() }),
        None => Ok(tokens),
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`flash_attention`](super::flash_attention()), of one head: q, k and v
    /// `[tokens, dim]` give y `[tokens, dim]` and the logarithms of sums `[tokens]`. Sums in `f32`
    /// are in another order.
    ///
    /// # Errors
    /// [`Error::Length`] if they are not of one size, or not whole rows.
    pub fn flash_attention(
        [q, k, v]: [&[f32]; 3],
        dim: usize,
        causal: bool,
        scale: Option<f32>,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let tokens = rows_of(dim, &[q, k, v])?;
        let (scale, mut y, mut lse) = (
            scale.unwrap_or((dim as f32).sqrt().recip()),
            vec![0f32; tokens * dim],
            Vec::with_capacity(tokens),
        );
        for (i, (q, y)) in q.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).enumerate() {
            let seen = if causal { i + 1 } else { tokens };
            let scores: Vec<f32> =
                k.chunks_exact(dim).take(seen).map(|k| dot(q, k) * scale).collect();
            let largest = scores.iter().copied().fold(f32::MIN, f32::max);
            let mut total = 0f32;
            for (score, v) in scores.iter().zip(v.chunks_exact(dim)) {
                let weight = (score - largest).exp();
                total += weight;
                y.iter_mut().zip(v).for_each(|(y, v)| *y += weight * v);
            }
            y.iter_mut().for_each(|y| *y /= total);
            lse.push(largest + total.ln());
        }
        Ok((y, lse))
    }
}
