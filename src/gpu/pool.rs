//! Buffers that outlive their use: freed ones wait in size classes, so that a steady program allocates nothing.

use super::scopes::guarded;
use crate::error::{Error, Result};
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Counters of a context's buffer pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Requests that a waiting buffer served.
    pub hits: u64,
    /// Requests that allocated.
    pub misses: u64,
    /// Bytes in buffers now in use.
    pub used_bytes: u64,
    /// Bytes in buffers that wait for reuse.
    pub free_bytes: u64,
}

#[derive(Default)]
pub struct Pool(Mutex<State>);

#[derive(Default)]
struct State {
    free: HashMap<(u64, wgpu::BufferUsages), Vec<wgpu::Buffer>>,
    stats: PoolStats,
}

impl State {
    fn reuse(&mut self, size: u64, usage: wgpu::BufferUsages) -> Option<wgpu::Buffer> {
        let buffer = self.free.get_mut(&(size, usage))?.pop()?;
        self.stats.hits += 1;
        self.stats.free_bytes -= size;
        self.stats.used_bytes += size;
        Some(buffer)
    }
}

/// A buffer that goes back to its pool, if it has one, when dropped. Whoever records work on it holds a clone of its `Arc` until the work
/// is submitted: a buffer that came back too early would be handed out and overwritten before the recorded work runs.
pub struct Pooled {
    buffer: wgpu::Buffer,
    home: Weak<Pool>,
}

impl Pooled {
    /// A number for the buffer, however many tensors are in it.
    pub fn id(&self) -> usize {
        let mut hasher = DefaultHasher::new();
        self.buffer.hash(&mut hasher);
        hasher.finish() as usize
    }

    /// A buffer that belongs to somebody else, and to no pool.
    pub fn foreign(buffer: wgpu::Buffer) -> Self {
        Self { buffer, home: Weak::new() }
    }
}

impl std::ops::Deref for Pooled {
    type Target = wgpu::Buffer;
    fn deref(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(pool) = self.home.upgrade() {
            let (size, usage) = (self.buffer.size(), self.buffer.usage());
            let mut state = pool.state();
            state.stats.used_bytes -= size;
            state.stats.free_bytes += size;
            state.free.entry((size, usage)).or_default().push(self.buffer.clone());
        }
    }
}

impl Pool {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing in a critical section can leave the state half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of at least `bytes`, its contents left over from its last use.
    pub fn get(self: &Arc<Self>, device: &wgpu::Device, bytes: u64, usage: wgpu::BufferUsages, label: &str) -> Result<Arc<Pooled>> {
        let limit = device.limits().max_buffer_size & !3;
        if bytes > limit {
            return Err(Error::TooLarge { what: label.to_owned(), bytes, limit });
        }
        // Near the limit a class may be above it.
        let size = size_class(bytes).min(limit);
        if let Some(buffer) = self.state().reuse(size, usage) {
            return Ok(Arc::new(Pooled { buffer, home: Arc::downgrade(self) }));
        }
        let descriptor = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let buffer = guarded(device, || format!("allocating {size} bytes"), || device.create_buffer(&descriptor))?;
        let mut state = self.state();
        state.stats.misses += 1;
        state.stats.used_bytes += size;
        Ok(Arc::new(Pooled { buffer, home: Arc::downgrade(self) }))
    }

    pub fn stats(&self) -> PoolStats {
        self.state().stats
    }

    /// Frees every buffer that waits.
    pub fn trim(&self) {
        let mut state = self.state();
        state.free.clear();
        state.stats.free_bytes = 0;
    }
}

/// Four classes a power of two, from 256 bytes on; at most a quarter more than was asked for.
fn size_class(bytes: u64) -> u64 {
    let bytes = bytes.max(256);
    let step = (bytes.checked_next_power_of_two().unwrap_or(1 << 63) / 8).max(64);
    bytes.div_ceil(step).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn classes_waste_at_most_a_quarter() {
        assert_eq!(size_class(0), 256);
        for bytes in (256..100_000).chain([1 << 31, (1 << 31) + 1]) {
            let class = size_class(bytes);
            assert!(class >= bytes && class <= bytes + bytes / 4 && class.is_multiple_of(4), "{bytes} -> {class}");
            assert_eq!(size_class(class), class);
        }
    }
}
