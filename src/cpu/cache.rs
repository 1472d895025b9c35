//! The key-value cache of attention on the CPU: laid out for vectors, in 32 bits or in 16.

use super::f16_convert;
use crate::{
    element::Element,
    error::{Error, Result},
    ops::transformer::{AttentionShape, HostKvCache},
};
use half::{f16, slice::HalfFloatSliceExt};
use std::borrow::Cow;

const OP: &str = "key-value cache";

/// Positions whose keys lie together. Of fewer, compilers unroll loops instead of making vectors of
/// them.
pub(super) const BLOCK: usize = 64;

/// Running sums of a score, as the CPU reference has them.
pub(super) const SUMS: usize = 8;

/// Keys and values of one sequence in one layer, in host memory, laid out for [`attention`](crate::cpu::attention).
#[derive(Clone)]
pub struct KvCache {
    pub(super) shape: AttentionShape,
    pub(super) len: usize,
    pub(super) heads: Heads,
    /// Positions that a token sees, itself among them; all where there is none.
    pub(super) window: Option<usize>,
}

/// By key head, in the type that they are kept in; none before the first token.
#[derive(Clone)]
pub(super) enum Heads {
    F32(Vec<KeyHead<f32>>),
    F16(Vec<KeyHead<f16>>),
}

/// Does the same with the heads of either type.
macro_rules! each_type {
    ($heads:expr, $bound:ident => $what:expr) => {
        match $heads {
            Heads::F32($bound) => $what,
            Heads::F16($bound) => $what,
        }
    };
}

/// Keys `[position / 64, head_dim, 64]`, the dimensions in the order of [`place`], so that a vector
/// has positions side by side, each with its own sum, and nothing is added up across a vector;
/// values `[position, head_dim]`.
#[derive(Clone)]
pub(super) struct KeyHead<T> {
    pub keys: Vec<[T; BLOCK]>,
    pub values: Vec<T>,
}

impl<T: Number> KeyHead<T> {
    fn none() -> Self {
        Self { keys: Vec::new(), values: Vec::new() }
    }

    fn truncate(&mut self, tokens: usize, dim: usize) {
        self.keys.truncate(tokens.div_ceil(BLOCK) * dim);
        self.values.truncate(tokens * dim);
    }

    /// Appends keys and values `[head_dim]` as token `at`.
    fn push(&mut self, at: usize, keys: &[T], values: &[T]) {
        let (dim, lane) = (keys.len(), at % BLOCK);
        if lane == 0 {
            self.keys.resize(self.keys.len() + dim, [T::default(); BLOCK]);
        }
        let first = self.keys.len() - dim;
        let block = &mut self.keys[first..];
        keys.iter().enumerate().for_each(|(d, &key)| block[place(d, dim)][lane] = key);
        self.values.extend_from_slice(values);
    }
}

/// A type that keys and values are kept in.
pub(super) trait Number: Copy + Default + Send + Sync {
    /// Whether memory is asked for ahead. Numbers of 16 bits, of which a page has twice as many,
    /// gain nothing by it.
    const NEAR: bool;

    /// The nearest numbers of this type.
    fn narrow(from: &[f32]) -> Cow<'_, [Self]>;

    /// Converts the numbers to `f32`: `from` itself, or written to the beginning of `room`.
    fn widen<'a>(from: &'a [Self], room: &'a mut Vec<f32>) -> &'a [f32];
}

impl Number for f32 {
    const NEAR: bool = true;

    fn narrow(from: &[f32]) -> Cow<'_, [Self]> {
        from.into()
    }

    #[inline(always)]
    fn widen<'a>(from: &'a [Self], _: &'a mut Vec<f32>) -> &'a [f32] {
        from
    }
}

impl Number for f16 {
    const NEAR: bool = false;

    fn narrow(from: &[f32]) -> Cow<'_, [Self]> {
        let mut f16s = vec![Self::ZERO; from.len()];
        f16s.convert_from_f32_slice(from);
        f16s.into()
    }

    #[inline(always)]
    fn widen<'a>(from: &'a [Self], room: &'a mut Vec<f32>) -> &'a [f32] {
        if room.len() < from.len() {
            room.resize(from.len(), 0.0);
        }
        let room = &mut room[..from.len()];
        f16_convert::widen(from, room);
        room
    }
}

/// Where dimension d lies in a block of keys: those of one running sum after another, so that keys
/// are read in their order.
#[inline(always)]
pub(super) fn place(d: usize, dim: usize) -> usize {
    let whole = dim / SUMS;
    if d < whole * SUMS { d % SUMS * whole + d / SUMS } else { d }
}

impl KvCache {
    /// Returns an empty cache, of numbers in [`Element::F32`] or [`Element::F16`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for another element, or a shape that the ops do not support: as
    /// [`HostKvCache::new`].
    pub fn new(shape: AttentionShape, element: Element) -> Result<Self> {
        shape.check(OP)?;
        let heads = match element {
            Element::F32 => Heads::F32(Vec::new()),
            Element::F16 => Heads::F16(Vec::new()),
            _ => {
                let what = "the elements of a cache on the CPU are F32 or F16".into();
                return Err(Error::Invalid { op: OP, what });
            }
        };
        Ok(Self { shape, len: 0, heads, window: None })
    }

    /// Sets a sliding window: a token attends to the last `window` positions, its own among them.
    #[must_use]
    pub fn window(self, window: Option<usize>) -> Self {
        Self { window: window.map(|window| window.max(1)), ..self }
    }

    /// Number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the cache has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all tokens but the first `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        self.len = self.len.min(tokens);
        each_type!(&mut self.heads, heads => heads.iter_mut().for_each(|head| head.truncate(self.len, self.shape.head_dim)));
    }

    /// Appends a token's keys and values, `[kv_heads, head_dim]` both.
    pub(super) fn push(&mut self, keys: &[f32], values: &[f32]) {
        fn push<T: Number>(
            heads: &mut Vec<KeyHead<T>>,
            at: usize,
            dim: usize,
            keys: &[f32],
            values: &[f32],
        ) {
            heads.resize_with(keys.len() / dim, KeyHead::none);
            let (keys, values) = (T::narrow(keys), T::narrow(values));
            let rows = keys.chunks_exact(dim).zip(values.chunks_exact(dim));
            heads
                .iter_mut()
                .zip(rows)
                .for_each(|(head, (keys, values))| head.push(at, keys, values));
        }
        each_type!(&mut self.heads, heads => push(heads, self.len, self.shape.head_dim, keys, values));
        self.len += 1;
    }

    /// Returns a copy in the layout of a [`HostKvCache`], which a cache on a GPU can be written
    /// from.
    ///
    /// # Errors
    /// None of a cache that [`KvCache::new`] made.
    pub fn read(&self) -> Result<HostKvCache> {
        fn copy<T: Number>(heads: &[KeyHead<T>], len: usize, dim: usize) -> (Vec<f32>, Vec<f32>) {
            let (mut keys, mut values, mut room) = (Vec::new(), Vec::new(), Vec::new());
            for position in 0..len {
                for head in heads {
                    let block = &head.keys[position / BLOCK * dim..][..dim];
                    let row: Vec<T> =
                        (0..dim).map(|d| block[place(d, dim)][position % BLOCK]).collect();
                    keys.extend_from_slice(T::widen(&row, &mut room));
                    values.extend_from_slice(T::widen(
                        &head.values[position * dim..][..dim],
                        &mut room,
                    ));
                }
            }
            (keys, values)
        }
        let (keys, values) =
            each_type!(&self.heads, heads => copy(heads, self.len, self.shape.head_dim));
        Ok(HostKvCache::from_parts(self.shape, keys, values)?.window(self.window))
    }

    /// Replaces the tokens of this cache by those of `host`. Element and window stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cache of another shape.
    pub fn write(&mut self, host: &HostKvCache) -> Result<()> {
        let AttentionShape { kv_heads, head_dim, .. } = self.shape;
        let other = host.shape();
        if (other.kv_heads, other.head_dim) != (kv_heads, head_dim) {
            let what = format!(
                "{} key heads of {} for a cache of {kv_heads} key heads of {head_dim}",
                other.kv_heads, other.head_dim
            );
            return Err(Error::Invalid { op: OP, what });
        }
        self.truncate(0);
        let row = kv_heads * head_dim;
        host.keys()
            .chunks_exact(row)
            .zip(host.values().chunks_exact(row))
            .for_each(|(keys, values)| self.push(keys, values));
        Ok(())
    }

    /// Number of tokens in rows of queries, keys and values.
    pub(super) fn rows(&self, qkv: &[f32]) -> Result<usize> {
        let row = self.shape.row();
        if qkv.len().is_multiple_of(row) {
            return Ok(qkv.len() / row);
        }
        Err(Error::Length { shape: [qkv.len() / row, row].into(), found: qkv.len() })
    }
}
