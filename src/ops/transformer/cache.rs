//! The KV cache, on the GPU and on the host.

use crate::{
    element::Element,
    error::{Error, Result},
    gpu::{
        context::Context,
        tensor::{Bind, Bound, Tensor},
    },
};
use half::f16;
use std::{fmt, pin::Pin};

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

impl fmt::Display for AttentionShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, kv_heads, head_dim } = self;
        write!(f, "{heads} heads, {kv_heads} key-value heads of width {head_dim}")
    }
}

impl AttentionShape {
    /// The widest head that the kernels hold in workgroup memory.
    pub const MAX_DIM: usize = 256;

    /// More heads than any model has, so that no product of them overflows.
    const MAX_HEADS: usize = 1 << 16;

    /// Columns of the queries, keys and values of a token: what q_proj, k_proj and v_proj make
    /// together.
    pub fn row(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Fours of a head's width.
    pub(super) fn quads(&self) -> usize {
        self.head_dim.div_ceil(4)
    }

    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        let Self { heads, kv_heads, head_dim } = *self;
        let sound = kv_heads > 0
            && (1..=Self::MAX_HEADS).contains(&heads)
            && heads.is_multiple_of(kv_heads)
            && head_dim > 0
            && head_dim.is_multiple_of(2);
        if sound && head_dim <= Self::MAX_DIM {
            return Ok(());
        }
        let what = format!(
            "{heads} query heads, {kv_heads} key heads of width {head_dim}: heads must be shared evenly and at most {}, widths even and at most {}",
            Self::MAX_HEADS,
            Self::MAX_DIM
        );
        Err(Error::Invalid { op, what })
    }
}

/// Where the new tokens of an op go in a KV cache: the same number for each of some sequences, which
/// they continue.
#[derive(Clone, Copy, Debug)]
pub struct CachePositions<'a> {
    pub(in crate::ops) sequences: &'a Tensor<u32>,
    pub(in crate::ops) tokens: usize,
}

impl<'a> CachePositions<'a> {
    /// `tokens` new tokens for each of the `sequences` `[n, 2]`: the index of the sequence in the
    /// cache, and how many tokens it has had before. No sequence is there twice; an index that does
    /// not exist is taken for the last.
    pub fn new(sequences: &'a Tensor<u32>, tokens: usize) -> Self {
        Self { sequences, tokens }
    }

    /// Number of sequences, which must be for this number of tokens altogether.
    pub(in crate::ops) fn check(&self, op: &'static str, tokens: usize) -> Result<usize> {
        let (run, shape) = (self.tokens, self.sequences.shape());
        let n = shape.dims().first().copied().unwrap_or(0);
        if shape.dims() != [n, 2] {
            let expected = "[n, 2]".into();
            return Err(Error::Shape { op, what: "sequences", expected, found: shape });
        }
        if run == 0 || n.saturating_mul(run) != tokens {
            let what = format!("{tokens} tokens for {n} sequences with {run} each");
            return Err(Error::Invalid { op, what });
        }
        Ok(n)
    }

    /// Number of rows for each sequence, where `rows` come after its last tokens.
    pub(super) fn check_last(&self, op: &'static str, rows: usize) -> Result<usize> {
        let n = self.sequences.shape().dims().first().copied().unwrap_or(0);
        let n = self.check(op, n.saturating_mul(self.tokens))?;
        let each = rows.checked_div(n).unwrap_or(self.tokens);
        if rows != n * each || !(1..=self.tokens).contains(&each) {
            let what = format!("{rows} rows for {n} sequences with {} tokens each", self.tokens);
            return Err(Error::Invalid { op, what });
        }
        Ok(each)
    }
}

/// The keys and values of one layer on the GPU, for `sequences` sequences of up to `capacity`
/// tokens; in `f32`, or in `f16` at half the size.
///
/// Keys are `[sequence, head, ceil(D / 4), capacity, 4]`, so that a thread a position reads 16
/// bytes beside its neighbor's; values `[sequence, head, capacity, ceil(D / 4), 4]`.
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(super) shape: AttentionShape,
    pub(super) sequences: usize,
    pub(super) capacity: usize,
    pub(super) keys: Floats,
    pub(super) values: Floats,
    /// Positions that a token sees, itself among them; all where there is none.
    pub(super) window: Option<usize>,
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
            other => Err(Error::Invalid {
                op: "key-value cache",
                what: format!("elements of {other}; f32 and f16 are supported"),
            }),
        }
    }

    fn duplicate(&self) -> Result<Self> {
        Ok(match self {
            Self::F32(tensor) => Self::F32(tensor.duplicate()?),
            Self::F16(tensor) => Self::F16(tensor.duplicate()?),
        })
    }

    fn write(&self, numbers: &[f32]) -> Result<()> {
        match self {
            Self::F32(tensor) => tensor.write(numbers),
            Self::F16(tensor) => {
                tensor.write(&numbers.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>())
            }
        }
    }

    fn read(&self) -> Pin<Box<dyn Future<Output = Result<Vec<f32>>> + Send>> {
        match self {
            Self::F32(tensor) => Box::pin(tensor.read()),
            Self::F16(tensor) => {
                let f16s = tensor.read();
                Box::pin(async move { Ok(f16s.await?.into_iter().map(f16::to_f32).collect()) })
            }
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
    pub fn new(
        context: &Context,
        shape: AttentionShape,
        sequences: usize,
        capacity: usize,
        element: Element,
    ) -> Result<Self> {
        shape.check("key-value cache")?;
        let dims = [sequences.saturating_mul(shape.kv_heads), shape.quads(), capacity, 4];
        let (keys, values) =
            (Floats::zeros(context, element, dims)?, Floats::zeros(context, element, dims)?);
        Ok(Self { shape, sequences, capacity, keys, values, window: None })
    }

    /// Sets a sliding window: a token sees the last `window` positions only, its own among them, or
    /// all of them for none. A window of 0 is one of 1. The cache keeps positions before it, so that
    /// a sequence can be cut short.
    #[must_use]
    pub fn window(self, window: Option<usize>) -> Self {
        Self { window: window.map(|window| window.max(1)), ..self }
    }

    /// A cache of its own with the same contents.
    ///
    /// # Errors
    /// What the device reports.
    pub fn duplicate(&self) -> Result<Self> {
        Ok(Self { keys: self.keys.duplicate()?, values: self.values.duplicate()?, ..self.clone() })
    }

    /// Copies it back: the sequences have this many tokens.
    ///
    /// # Errors
    /// [`Error::Length`] for another number of sequences, or more tokens than there is room for;
    /// what the device reports.
    pub fn read(
        &self,
        lengths: &[usize],
    ) -> Result<impl Future<Output = Result<Vec<HostKvCache>>> + Send + use<>> {
        self.check_lengths(lengths)?;
        let (keys, values, lengths, cache) =
            (self.keys.read(), self.values.read(), lengths.to_vec(), self.clone());
        Ok(async move {
            let (keys, values) = (keys.await?, values.await?);
            let sequence = |(s, &length): (usize, &usize)| {
                let (mut host, shape) = (HostKvCache::new(cache.shape)?, cache.shape);
                let numbers = || {
                    (0..length).flat_map(|t| {
                        (0..shape.kv_heads)
                            .flat_map(move |h| (0..shape.head_dim).map(move |d| (t, h, d)))
                    })
                };
                host.keys = numbers().map(|(t, h, d)| keys[cache.key(s, t, h, d)]).collect();
                host.values = numbers().map(|(t, h, d)| values[cache.value(s, t, h, d)]).collect();
                Ok(host)
            };
            lengths.iter().enumerate().map(sequence).collect()
        })
    }

    /// Overwrites it with sequences from host memory.
    ///
    /// # Errors
    /// As [`KvCache::read`]; [`Error::Invalid`] for other heads.
    pub fn write(&self, sequences: &[HostKvCache]) -> Result<()> {
        self.check_lengths(&sequences.iter().map(HostKvCache::len).collect::<Vec<_>>())?;
        let AttentionShape { kv_heads, head_dim, .. } = self.shape;
        let all = self.sequences * kv_heads * self.shape.quads() * self.capacity * 4;
        let (mut keys, mut values) = (vec![0.0; all], vec![0.0; all]);
        for (s, host) in sequences.iter().enumerate() {
            if host.shape != self.shape {
                return Err(Error::Invalid {
                    op: "key-value cache",
                    what: format!("a sequence with {}; the cache has {}", host.shape, self.shape),
                });
            }
            for (i, (&key, &value)) in host.keys.iter().zip(&host.values).enumerate() {
                let (t, h, d) = (i / (kv_heads * head_dim), i / head_dim % kv_heads, i % head_dim);
                keys[self.key(s, t, h, d)] = key;
                values[self.value(s, t, h, d)] = value;
            }
        }
        self.keys.write(&keys)?;
        self.values.write(&values)
    }

    pub(super) fn is_f16(&self) -> bool {
        matches!(self.keys, Floats::F16(_))
    }

    fn check_lengths(&self, lengths: &[usize]) -> Result<()> {
        match lengths.iter().find(|&&length| length > self.capacity) {
            Some(&found) => {
                Err(Error::Length { shape: [self.sequences, self.capacity].into(), found })
            }
            None if lengths.len() != self.sequences => {
                Err(Error::Length { shape: [self.sequences].into(), found: lengths.len() })
            }
            None => Ok(()),
        }
    }

    /// Where the d-th number of a head's key for a token lies.
    fn key(&self, sequence: usize, token: usize, head: usize, d: usize) -> usize {
        (((sequence * self.shape.kv_heads + head) * self.shape.quads() + d / 4) * self.capacity
            + token)
            * 4
            + d % 4
    }

    /// Where that of its value lies.
    fn value(&self, sequence: usize, token: usize, head: usize, d: usize) -> usize {
        ((sequence * self.shape.kv_heads + head) * self.capacity + token) * self.shape.quads() * 4
            + d
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

/// The keys and values of one layer and one sequence in host memory: the CPU reference
/// of [`KvCache`]. It grows as it is filled.
#[derive(Clone, Debug)]
pub struct HostKvCache {
    pub(super) shape: AttentionShape,
    /// A token after another, `[kv_heads, head_dim]` each.
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    /// As in [`KvCache`].
    pub(super) window: Option<usize>,
}

impl HostKvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`Error::Invalid`] as for [`KvCache::new`].
    pub fn new(shape: AttentionShape) -> Result<Self> {
        shape.check("key-value cache")?;
        Ok(Self { shape, keys: Vec::new(), values: Vec::new(), window: None })
    }

    /// Sets a sliding window, as [`KvCache::window`].
    #[must_use]
    pub fn window(self, window: Option<usize>) -> Self {
        Self { window: window.map(|window| window.max(1)), ..self }
    }

    /// A cache of keys and values, `[tokens, kv_heads, head_dim]` both.
    ///
    /// # Errors
    /// [`Error::Length`] if they are not whole tokens, or not as many of both.
    pub fn from_parts(shape: AttentionShape, keys: Vec<f32>, values: Vec<f32>) -> Result<Self> {
        let cache = Self { keys, values, ..Self::new(shape)? };
        let whole = [cache.len(), shape.kv_heads, shape.head_dim];
        for numbers in [&cache.keys, &cache.values] {
            if numbers.len() != whole.iter().product::<usize>() {
                return Err(Error::Length { shape: whole.into(), found: numbers.len() });
            }
        }
        Ok(cache)
    }

    /// The heads.
    pub fn shape(&self) -> AttentionShape {
        self.shape
    }

    /// The keys, `[tokens, kv_heads, head_dim]`.
    pub fn keys(&self) -> &[f32] {
        &self.keys
    }

    /// The values, `[tokens, kv_heads, head_dim]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Tokens in it.
    pub fn len(&self) -> usize {
        self.keys.len() / (self.shape.kv_heads * self.shape.head_dim)
    }

    /// Returns whether it is empty.
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
