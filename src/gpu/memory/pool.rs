//! Buffers that outlive their use: freed ones wait for a request of about their size, so that a
//! steady program allocates nothing. Those that have waited longest go back to the driver when
//! memory is short.

use crate::{
    error::{Error, Result},
    gpu::device::{
        metal::shared_buffer,
        poll::Waits,
        scopes::guarded,
        sync::{
            Arc, Mutex, MutexGuard, PoisonError, Weak,
            thread::{self, ThreadId},
        },
    },
    memory::{FreeMemory, LiveMemory, MemoryPressure, MemoryStats},
};
use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

#[derive(Default)]
pub struct Pool(Mutex<State<wgpu::Buffer>>);

/// What there is, and what waits. It knows sizes only, and nothing of a device.
struct State<B> {
    /// By usage, size, and when they came.
    cached: BTreeMap<(u32, u64, u64), B>,
    /// Their usage and size, by when they came: the first has waited longest.
    ages: BTreeMap<u64, (u32, u64)>,
    returns: u64,
    live: HashMap<Arc<str>, Live>,
    stats: MemoryStats,
    /// The app's, for when memory is short.
    free: Option<FreeMemory>,
    /// Threads in it.
    freeing: Vec<ThreadId>,
}

#[derive(Default)]
struct Live {
    buffers: usize,
    bytes: u64,
}

impl<B> Default for State<B> {
    fn default() -> Self {
        let (cached, ages, live, stats, freeing) = Default::default();
        Self { cached, ages, returns: 0, live, stats, free: None, freeing }
    }
}

impl<B> State<B> {
    /// The smallest that waits and will do, of those the one that came last.
    fn reuse(&mut self, usage: u32, size: u64) -> Option<(u64, B)> {
        // Under a limit, what was estimated must do.
        let most = if self.stats.limit.is_some() { size } else { size + size / 4 };
        let fitting = (usage, size, 0)..=(usage, most, u64::MAX);
        let found = self.cached.range(fitting).next()?.0.1;
        let key = *self.cached.range((usage, found, 0)..=(usage, found, u64::MAX)).next_back()?.0;
        self.stats.hits += 1;
        Some((found, self.uncache(key)?))
    }

    fn uncache(&mut self, key: (u32, u64, u64)) -> Option<B> {
        self.ages.remove(&key.2);
        self.stats.cached_bytes -= key.1;
        self.cached.remove(&key)
    }

    fn cache(&mut self, usage: u32, size: u64, buffer: B) {
        self.returns += 1;
        self.cached.insert((usage, size, self.returns), buffer);
        self.ages.insert(self.returns, (usage, size));
        self.stats.cached_bytes += size;
    }

    /// Counts a buffer as live; gives the label to keep with it.
    fn enter(&mut self, label: &str, size: u64, asked: u64) -> Arc<str> {
        let label =
            self.live.get_key_value(label).map_or_else(|| label.into(), |(label, _)| label.clone());
        let live = self.live.entry(label.clone()).or_default();
        live.buffers += 1;
        live.bytes += size;
        self.stats.live_bytes += size;
        self.stats.fragmentation_bytes += size.saturating_sub(asked);
        self.stats.peak_live_bytes = self.stats.peak_live_bytes.max(self.stats.live_bytes);
        self.stats.peak_bytes =
            self.stats.peak_bytes.max(self.stats.live_bytes + self.stats.cached_bytes);
        label
    }

    fn leave(&mut self, label: &Arc<str>, size: u64, asked: u64) {
        if let Some(live) = self.live.get_mut(label) {
            live.buffers -= 1;
            live.bytes -= size;
            if live.buffers == 0 {
                self.live.remove(label);
            }
        }
        self.stats.live_bytes -= size;
        self.stats.fragmentation_bytes -= size.saturating_sub(asked);
    }

    /// Has those go that waited longest, until this many bytes more are within the limit; they are
    /// dropped by the caller, who holds no lock then.
    fn evict_for(&mut self, size: u64) -> Vec<B> {
        let mut gone = Vec::new();
        let Some(limit) = self.stats.limit else { return gone };
        while (self.stats.live_bytes + self.stats.cached_bytes).saturating_add(size) > limit
            && let Some((&age, &(usage, bytes))) = self.ages.first_key_value()
        {
            gone.extend(self.uncache((usage, bytes, age)));
            self.stats.evictions += 1;
        }
        gone
    }

    /// Returns the limit that `size` more bytes would exceed, whatever is evicted.
    fn exceeds(&self, size: u64) -> Option<u64> {
        self.stats.limit.filter(|&limit| self.stats.live_bytes.saturating_add(size) > limit)
    }

    fn live(&self) -> Vec<LiveMemory> {
        let mut all: Vec<_> = self
            .live
            .iter()
            .map(|(label, live)| LiveMemory::new(label.clone(), live.buffers, live.bytes))
            .collect();
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.label.cmp(&b.label)));
        all
    }
}

/// A buffer that goes back to its pool, if it has one, when dropped. Whoever records work on it
/// holds a clone of its `Arc` until the work is submitted: a buffer that came back too early would
/// be handed out and overwritten before the recorded work runs.
pub struct Pooled {
    buffer: wgpu::Buffer,
    home: Option<Home>,
    /// Whether the host has it, or waits for it.
    mapped: AtomicBool,
    /// Whether work that was submitted, or an upload, has written to it since it left the pool.
    written: AtomicBool,
}

/// Where a buffer belongs, and as what it is counted.
struct Home {
    pool: Weak<Pool>,
    label: Arc<str>,
    asked: u64,
}

impl Pooled {
    /// A number for the buffer, however many tensors are in it.
    pub fn id(&self) -> usize {
        let mut hasher = DefaultHasher::new();
        self.buffer.hash(&mut hasher);
        hasher.finish() as usize
    }

    fn new(buffer: wgpu::Buffer, home: Option<Home>, written: bool) -> Self {
        Self { buffer, home, mapped: AtomicBool::new(false), written: AtomicBool::new(written) }
    }

    /// A buffer that belongs to somebody else, and to no pool.
    pub fn foreign(buffer: wgpu::Buffer) -> Self {
        Self::new(buffer, None, true)
    }

    /// Notes that the host has the buffer, or waits for it. Refuses one that it had before.
    pub fn begin_map(&self, op: &'static str) -> Result<()> {
        if self.mapped.swap(true, Ordering::Relaxed) { Err(mapped(op)) } else { Ok(()) }
    }

    /// Notes that the device may have the buffer again.
    pub fn end_map(&self) {
        self.mapped.store(false, Ordering::Relaxed);
    }

    /// Refuses work on a buffer that the host has. wgpu refuses it too, but of work in several
    /// submissions only the one that names the buffer.
    pub fn check_unmapped(&self, op: &'static str) -> Result<()> {
        if self.mapped.load(Ordering::Relaxed) { Err(mapped(op)) } else { Ok(()) }
    }

    /// Notes that the buffer has contents: something that writes to it was submitted.
    pub fn mark_written(&self) {
        self.written.store(true, Ordering::Relaxed);
    }

    /// Returns whether anything that writes to it was submitted since it left the pool.
    pub fn is_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
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
        let Some(Home { pool, label, asked }) = &self.home else { return };
        let Some(pool) = pool.upgrade() else { return };
        let size = self.buffer.size();
        let mut state = pool.state();
        state.leave(label, size, *asked);
        state.cache(self.buffer.usage().bits(), size, self.buffer.clone());
        // The limit may have been lowered meanwhile.
        let gone = state.evict_for(0);
        drop(state);
        drop(gone);
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State<wgpu::Buffer>> {
        // Nothing in a critical section can leave the state half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of at least `bytes`, its contents left over from its last use.
    pub fn get(
        self: &Arc<Self>,
        device: &wgpu::Device,
        bytes: u64,
        usage: wgpu::BufferUsages,
        label: &str,
    ) -> Result<Arc<Pooled>> {
        let limit = device.limits().max_buffer_size & !3;
        if bytes > limit {
            return Err(Error::TooLarge { what: label.to_owned(), bytes, limit });
        }
        // Near the limit a rounded size may be above it.
        let size = buffer_bytes(bytes).min(limit);
        self.relieved(
            || label.to_owned(),
            size,
            || self.placed(device, (size, bytes), usage, label),
        )
    }

    /// A buffer of this size for this many bytes.
    fn placed(
        self: &Arc<Self>,
        device: &wgpu::Device,
        (size, bytes): (u64, u64),
        usage: wgpu::BufferUsages,
        label: &str,
    ) -> Result<Arc<Pooled>> {
        let home = |label| Some(Home { pool: Arc::downgrade(self), label, asked: bytes });
        let mut state = self.state();
        if let Some((found, buffer)) = state.reuse(usage.bits(), size) {
            let label = state.enter(label, found, bytes);
            return Ok(Arc::new(Pooled::new(buffer, home(label), false)));
        }
        if let Some(limit) = state.exceeds(size) {
            let live = state.live();
            return Err(Error::MemoryLimit { what: label.to_owned(), bytes: size, limit, live });
        }
        let gone = state.evict_for(size);
        state.stats.misses += 1;
        // Counted before it is there, so that threads do not pass the limit together.
        let label = state.enter(label, size, bytes);
        drop(state);
        drop(gone);
        match self.allocate(device, size, usage, &label) {
            Ok(buffer) => Ok(Arc::new(Pooled::new(buffer, home(label), false))),
            Err(error) => {
                self.state().leave(&label, size, bytes);
                Err(error)
            }
        }
    }

    /// What needs this many bytes; where they are not there, once more when the app has been asked
    /// to free some.
    pub fn relieved<T>(
        &self,
        what: impl FnOnce() -> String,
        bytes: u64,
        attempt: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let (error, limit) = match attempt() {
            Err(error @ Error::MemoryLimit { limit, .. }) => (error, Some(limit)),
            Err(error @ Error::OutOfMemory { .. }) => (error, None),
            other => return other,
        };
        let Some(freeing) = Freeing::begin(self) else { return Err(error) };
        freeing.function.call(&MemoryPressure { what: what(), bytes, limit, live: self.live() });
        drop(freeing);
        attempt()
    }

    /// Allocates; where there is no memory, again when all that waits has been given back.
    fn allocate(
        &self,
        device: &wgpu::Device,
        size: u64,
        usage: wgpu::BufferUsages,
        label: &str,
    ) -> Result<wgpu::Buffer> {
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let allocate = || {
            guarded(
                device,
                || format!("allocating {size} bytes for {label}"),
                || {
                    shared_buffer(device, &descriptor)
                        .unwrap_or_else(|| device.create_buffer(&descriptor))
                },
            )
        };
        let retried = match allocate() {
            Err(Error::OutOfMemory { .. }) => {
                let freed = self.state().cached.len() as u64;
                self.trim();
                self.state().stats.evictions += freed;
                // Memory is free when the work that uses it is done; a device that hangs is not
                // waited for.
                let _ = Waits::new(device.clone(), Some(Duration::from_secs(10))).wait(None);
                allocate()
            }
            other => return other,
        };
        retried.map_err(|error| match error {
            Error::OutOfMemory { during, message, .. } => {
                let mut live = self.state().live();
                // What was asked for is counted already, and is not there.
                live.retain_mut(|live| {
                    let own = &*live.label == label;
                    live.bytes -= if own { size } else { 0 };
                    live.buffers -= usize::from(own);
                    live.buffers > 0
                });
                Error::OutOfMemory { during, message, live }
            }
            other => other,
        })
    }

    pub fn stats(&self) -> MemoryStats {
        self.state().stats
    }

    /// What is live, the most first.
    pub fn live(&self) -> Vec<LiveMemory> {
        self.state().live()
    }

    /// Sets the most that live and cached bytes may be.
    pub fn limit(&self, bytes: Option<u64>) {
        let mut state = self.state();
        state.stats.limit = bytes;
        let gone = state.evict_for(0);
        drop(state);
        drop(gone);
    }

    /// Sets what frees memory where it is short.
    pub fn free_by(&self, function: Option<FreeMemory>) {
        self.state().free = function;
    }

    /// Frees every buffer that waits.
    pub fn trim(&self) {
        let mut state = self.state();
        state.ages.clear();
        state.stats.cached_bytes = 0;
        let gone = std::mem::take(&mut state.cached);
        drop(state);
        drop(gone);
    }
}

/// A thread in the app's function, which is not called for what that asks for itself.
struct Freeing<'a> {
    pool: &'a Pool,
    function: FreeMemory,
}

impl<'a> Freeing<'a> {
    /// Begins, where there is a function and the thread is not in it. The pool is not locked after
    /// this.
    fn begin(pool: &'a Pool) -> Option<Self> {
        let (mut state, thread) = (pool.state(), thread::current().id());
        let function = state.free.clone().filter(|_| !state.freeing.contains(&thread))?;
        state.freeing.push(thread);
        drop(state);
        Some(Self { pool, function })
    }
}

/// However the function ends.
impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        let thread = thread::current().id();
        self.pool.state().freeing.retain(|&other| other != thread);
    }
}

fn mapped(op: &'static str) -> Error {
    let what = "a tensor is mapped until `Tensor::map` or `Tensor::map_mut` is done";
    Error::Invalid { op, what: what.into() }
}

/// The size of a new buffer: sixteen a power of two, from 256 bytes on, so that a buffer serves
/// requests that are a little larger, too. For more than 1024 bytes it is at most a sixteenth more
/// than was asked for.
pub fn buffer_bytes(bytes: u64) -> u64 {
    let bytes = bytes.max(256);
    let step = (bytes.checked_next_power_of_two().unwrap_or(1 << 63) / 32).max(64);
    bytes.div_ceil(step).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_waste_little() {
        assert_eq!(buffer_bytes(0), 256);
        for bytes in (256..100_000).chain([1 << 31, (1 << 31) + 1]) {
            let (size, most) = (buffer_bytes(bytes), if bytes > 1024 { bytes / 16 } else { 63 });
            assert!(
                size >= bytes && size <= bytes + most && size.is_multiple_of(4),
                "{bytes} -> {size}"
            );
            assert_eq!(buffer_bytes(size), size);
        }
    }

    /// A request as a pool makes it; true if something that waited served it.
    fn get(state: &mut State<&'static str>, label: &str, size: u64) -> Result<bool, u64> {
        if let Some((found, _)) = state.reuse(1, size) {
            state.enter(label, found, size);
            return Ok(true);
        }
        state.exceeds(size).map_or(Ok(()), Err)?;
        state.evict_for(size);
        state.enter(label, size, size);
        Ok(false)
    }

    fn free(state: &mut State<&'static str>, label: &str, size: u64, name: &'static str) {
        state.leave(&label.into(), size, size);
        state.cache(1, size, name);
    }

    #[test]
    fn what_waited_longest_goes_first() {
        let mut state = State::default();
        state.stats.limit = Some(3000);
        for size in [1000, 700, 800] {
            assert_eq!(get(&mut state, "a", size), Ok(false));
        }
        free(&mut state, "a", 700, "first");
        free(&mut state, "a", 1000, "second");
        free(&mut state, "a", 800, "third");
        assert_eq!(
            (state.stats.cached_bytes, state.stats.live_bytes, state.stats.peak_bytes),
            (2500, 0, 2500)
        );
        assert_eq!(get(&mut state, "b", 1300), Ok(false));
        assert_eq!(
            (state.stats.evictions, state.stats.cached_bytes, state.stats.live_bytes),
            (2, 800, 1300)
        );
        assert_eq!(state.cached.values().collect::<Vec<_>>(), [&"third"]);
        // As much as is there, and no more.
        assert_eq!(get(&mut state, "b", 1701), Err(3000));
        assert_eq!(
            (state.stats.evictions, state.stats.cached_bytes),
            (2, 800),
            "a request that is refused costs nobody a buffer"
        );
        assert_eq!(get(&mut state, "c", 1700), Ok(false));
        assert_eq!(
            (state.stats.cached_bytes, state.stats.live_bytes, state.stats.peak_bytes),
            (0, 3000, 3000)
        );
        let live: Vec<_> = state
            .live()
            .iter()
            .map(|live| (live.label.to_string(), live.buffers, live.bytes))
            .collect();
        assert_eq!(live, [("c".into(), 1, 1700), ("b".into(), 1, 1300)]);
        free(&mut state, "c", 1700, "c");
        assert_eq!(state.live().len(), 1);
    }

    #[test]
    fn a_request_gets_the_closest_that_waits() {
        let mut state = State::default();
        for size in [1300, 1200, 1200] {
            get(&mut state, "a", size).unwrap();
        }
        free(&mut state, "a", 1300, "large");
        free(&mut state, "a", 1200, "old");
        free(&mut state, "a", 1200, "new");
        assert_eq!(state.reuse(1, 1100), Some((1200, "new")));
        assert_eq!(state.reuse(1, 1100), Some((1200, "old")));
        assert_eq!(state.reuse(1, 1000), None, "a third more is too much");
        assert_eq!(state.reuse(2, 1300), None, "of another usage");
        assert_eq!(state.reuse(1, 1301), None);
        assert_eq!(state.reuse(1, 1300), Some((1300, "large")));
        state.enter("a", 1300, 1100);
        assert_eq!(state.stats.fragmentation_bytes, 200);
        state.leave(&"a".into(), 1300, 1100);
        assert_eq!((state.stats.fragmentation_bytes, state.stats.cached_bytes), (0, 0));
    }
}
