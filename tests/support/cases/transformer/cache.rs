//! New tokens of some sequences of a key-value cache, laid out as `wgsl/transformer/rope.wgsl` has it.

use crate::{Data, Recorder};
use bitnet_wgpu::{
    Element, Result, Tensor,
    transformer::{AttentionShape, KvCache},
};

#[derive(Clone, Debug)]
pub struct Slots {
    pub shape: AttentionShape,
    pub capacity: usize,
    /// Tokens that each sequence of the cache has had before.
    pub positions: Vec<usize>,
    /// The first sequence with new tokens, how many each, and how many sequences.
    pub slot: usize,
    pub run: usize,
    pub sequences: usize,
}

impl Slots {
    /// One sequence.
    pub fn one(heads: usize, kv_heads: usize, head_dim: usize, past: usize, run: usize) -> Self {
        let shape = AttentionShape { heads, kv_heads, head_dim };
        // Odd, and no more than what is needed.
        Self { shape, capacity: (past + run) | 1, positions: vec![past], slot: 0, run, sequences: 1 }
    }

    pub fn capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    /// `sequences` from `slot` on, of those that have had so many tokens.
    pub fn of(self, positions: &[usize], slot: usize, sequences: usize) -> Self {
        let capacity = (positions.iter().max().unwrap() + self.run) | 1;
        Self { positions: positions.to_vec(), slot, sequences, capacity, ..self }
    }

    pub fn tokens(&self) -> usize {
        self.run * self.sequences
    }

    fn quads(&self) -> usize {
        self.shape.head_dim.div_ceil(4)
    }

    /// A head's width with its padding.
    pub fn padded(&self) -> usize {
        self.quads() * 4
    }

    pub fn cache_len(&self) -> usize {
        self.positions.len() * self.shape.kv_heads * self.capacity * self.padded()
    }

    pub fn key_at(&self, slot: usize, head: usize, position: usize, d: usize) -> usize {
        (((slot * self.shape.kv_heads + head) * self.quads() + d / 4) * self.capacity + position) * 4 + d % 4
    }

    pub fn value_at(&self, slot: usize, head: usize, position: usize, d: usize) -> usize {
        ((slot * self.shape.kv_heads + head) * self.capacity + position) * self.padded() + d
    }

    /// Slot and position of a new token.
    pub fn place(&self, token: usize) -> (usize, usize) {
        let slot = self.slot + token / self.run;
        (slot, self.positions[slot] + token % self.run)
    }

    /// The cache and the positions on the device.
    pub fn upload(&self, r: &mut Recorder, element: Element, caches: &[Vec<f32>; 2]) -> Result<(KvCache, Tensor<u32>)> {
        let cache = KvCache::new(r.encoder.context(), self.shape, self.positions.len(), self.capacity, element)?;
        for (buffer, numbers) in cache.tensors().into_iter().zip(caches) {
            r.fill(buffer, &Data::floats(element, numbers));
        }
        let positions: Vec<u32> = self.positions.iter().map(|&position| position as u32).collect();
        Ok((cache, r.upload(&positions, [positions.len()])?))
    }
}
