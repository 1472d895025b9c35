//! Keys and values of the tokens so far.

use crate::{
    element::Element,
    error::{Error, Result},
    gpu::{
        context::Context,
        tensor::{Bind, Bound, Tensor},
    },
};
use half::f16;

/// The heads of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, each shared by `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of a head: even, at most [`AttentionShape::MAX_DIM`].
    pub head_dim: usize,
}

impl AttentionShape {
    /// The widest head that the kernels hold in workgroup memory.
    pub const MAX_DIM: usize = 256;

    /// Columns of the queries, keys and values of a token: what q_proj, k_proj and v_proj make together.
    pub fn row(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Fours of a head's width.
    pub(super) fn quads(&self) -> usize {
        self.head_dim.div_ceil(4)
    }

    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        let Self { heads, kv_heads, head_dim } = *self;
        let sound = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads) && head_dim > 0 && head_dim.is_multiple_of(2);
        if sound && head_dim <= Self::MAX_DIM {
            return Ok(());
        }
        let what = format!(
            "{heads} query heads, {kv_heads} key heads of width {head_dim}: heads must be shared evenly, widths even and at most {}",
            Self::MAX_DIM
        );
        Err(Error::Invalid { op, what })
    }
}

/// The new tokens of an op: `run` of each of several neighbouring sequences, which they continue.
#[derive(Clone, Copy, Debug)]
pub struct NewTokens<'a> {
    /// The first sequence.
    pub sequence: usize,
    /// New tokens of each.
    pub run: usize,
    /// `[sequences]`: the tokens that each sequence of the cache has had before.
    pub positions: &'a Tensor<u32>,
}

/// The keys and values of one layer on the GPU, for `sequences` sequences of up to `capacity` tokens; in `f32`, or in `f16` at half the size.
///
/// Keys are `[sequence, head, ceil(D / 4), capacity, 4]`, so that a thread a position reads 16 bytes beside its neighbour's; values
/// `[sequence, head, capacity, ceil(D / 4), 4]`.
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(super) shape: AttentionShape,
    pub(super) sequences: usize,
    pub(super) capacity: usize,
    pub(super) keys: Floats,
    pub(super) values: Floats,
}

/// A tensor of either float type.
#[derive(Clone, Debug)]
pub(super) enum Floats {
    F32(Tensor<f32>),
    F16(Tensor<f16>),
}

impl Floats {
    fn zeros(context: &Context, element: Element, shape: [usize; 4]) -> Result<Self> {
        match element {
            Element::F32 => Ok(Self::F32(Tensor::zeros(context, shape)?)),
            Element::F16 => Ok(Self::F16(Tensor::zeros(context, shape)?)),
            other => Err(Error::Invalid { op: "key-value cache", what: format!("elements of {other:?}; F32 and F16 are supported") }),
        }
    }
}

impl Bind for Floats {
    fn bound(&self) -> Bound<'_> {
        match self {
            Self::F32(tensor) => tensor.bound(),
            Self::F16(tensor) => tensor.bound(),
        }
    }
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`Error::Invalid`] for heads that are not shared evenly, or too wide; [`Error::TooLarge`].
    pub fn new(context: &Context, shape: AttentionShape, sequences: usize, capacity: usize, element: Element) -> Result<Self> {
        shape.check("key-value cache")?;
        let dims = [sequences.saturating_mul(shape.kv_heads), shape.quads(), capacity, 4];
        let (keys, values) = (Floats::zeros(context, element, dims)?, Floats::zeros(context, element, dims)?);
        Ok(Self { shape, sequences, capacity, keys, values })
    }

    /// Keys and values as they lie in memory, for tests.
    #[doc(hidden)]
    pub fn tensors(&self) -> [&dyn Bind; 2] {
        [&self.keys, &self.values]
    }

    /// The heads.
    pub fn shape(&self) -> AttentionShape {
        self.shape
    }

    /// Sequences.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Tokens that a sequence may have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

/// The keys and values of one layer and one sequence in host memory: the twin of [`KvCache`]. It grows as it is filled.
#[derive(Clone, Debug)]
pub struct HostKvCache {
    pub(super) shape: AttentionShape,
    /// A token after another, `[kv_heads, head_dim]` each.
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
}

impl HostKvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`Error::Invalid`] as for [`KvCache::new`].
    pub fn new(shape: AttentionShape) -> Result<Self> {
        shape.check("key-value cache")?;
        Ok(Self { shape, keys: Vec::new(), values: Vec::new() })
    }

    /// Tokens in it.
    pub fn len(&self) -> usize {
        self.keys.len() / (self.shape.kv_heads * self.shape.head_dim)
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Forgets all but the first `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        let row = self.shape.kv_heads * self.shape.head_dim;
        self.keys.truncate(tokens.saturating_mul(row));
        self.values.truncate(tokens.saturating_mul(row));
    }
}
