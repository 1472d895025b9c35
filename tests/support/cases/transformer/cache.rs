//! New tokens of some sequences of a key-value cache, laid out as `wgsl/transformer/rope.wgsl` has
//! it.

use crate::{Data, Recorder};
use bitnet_wgpu::{
    Element, Result, Tensor,
    transformer::{AttentionShape, KvCache},
};
use rand::{RngExt, rngs::SmallRng, seq::SliceRandom};

#[derive(Clone, Debug)]
pub struct Slots {
    pub shape: AttentionShape,
    pub capacity: usize,
    /// Tokens that each sequence of the cache has had before.
    pub positions: Vec<usize>,
    /// The sequences with new tokens, in any order, and how many each.
    pub used: Vec<usize>,
    pub run: usize,
    /// Positions that a token sees, where these are not all.
    pub window: Option<usize>,
}

impl Slots {
    /// One sequence.
    pub fn one(heads: usize, kv_heads: usize, head_dim: usize, past: usize, run: usize) -> Self {
        let shape = AttentionShape { heads, kv_heads, head_dim };
        // Odd, and no more than what is needed.
        Self {
            shape,
            capacity: (past + run) | 1,
            positions: vec![past],
            used: vec![0],
            run,
            window: None,
        }
    }

    pub fn capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    pub fn window(self, window: usize) -> Self {
        Self { window: Some(window), ..self }
    }

    /// Those `used` of sequences that have had this many tokens.
    pub fn of(self, positions: &[usize], used: &[usize]) -> Self {
        let capacity = (positions.iter().max().unwrap() + self.run) | 1;
        Self { positions: positions.to_vec(), used: used.to_vec(), capacity, ..self }
    }

    pub fn tokens(&self) -> usize {
        self.run * self.used.len()
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
        (((slot * self.shape.kv_heads + head) * self.quads() + d / 4) * self.capacity + position)
            * 4
            + d % 4
    }

    pub fn value_at(&self, slot: usize, head: usize, position: usize, d: usize) -> usize {
        ((slot * self.shape.kv_heads + head) * self.capacity + position) * self.padded() + d
    }

    /// Slot and position of a new token.
    pub fn place(&self, token: usize) -> (usize, usize) {
        let slot = self.used[token / self.run];
        (slot, self.positions[slot] + token % self.run)
    }

    /// The cache and the runs on the device.
    pub fn upload(
        &self,
        r: &mut Recorder,
        element: Element,
        caches: &[Vec<f32>; 2],
    ) -> Result<(KvCache, Tensor<u32>)> {
        let cache = KvCache::new(
            r.encoder.context(),
            self.shape,
            self.positions.len(),
            self.capacity,
            element,
        )?
        .window(self.window);
        for (buffer, numbers) in cache.tensors().into_iter().zip(caches) {
            r.fill(buffer, &Data::floats(element, numbers));
        }
        let runs: Vec<u32> =
            self.used.iter().flat_map(|&slot| [slot as u32, self.positions[slot] as u32]).collect();
        Ok((cache, r.upload(&runs, [self.used.len(), 2])?))
    }

    /// Some of this many sequences, in any order.
    pub fn some(rng: &mut SmallRng, sequences: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..sequences).collect();
        all.shuffle(rng);
        all.truncate(rng.random_range(1..=sequences));
        all
    }
}
