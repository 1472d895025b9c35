//! GPU memory in numbers.

use std::{fmt, sync::Arc};

/// The GPU memory of a context's tensors, and how it was got:
/// [`Context::memory_stats`](crate::Context::memory_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Requests that a buffer served which waited for reuse.
    pub hits: u64,
    /// Requests that allocated.
    pub misses: u64,
    /// Buffers that waited and were given back to the driver, since the limit, or its memory, was
    /// reached.
    pub evictions: u64,
    /// Bytes in buffers now in use.
    pub live_bytes: u64,
    /// Bytes in buffers that wait for reuse.
    pub cached_bytes: u64,
    /// The most that both together have been.
    pub peak_bytes: u64,
    /// The most that the live bytes have been.
    pub peak_live_bytes: u64,
    /// Bytes of the live buffers that nobody asked for: sizes are rounded up, and a buffer may be a
    /// little larger than what it serves.
    pub fragmentation_bytes: u64,
    /// The most that live and cached bytes may be:
    /// [`Context::limit_memory`](crate::Context::limit_memory).
    pub limit: Option<u64>,
}

/// A request for GPU memory that cannot be served as things are: what
/// [`ContextOptions::on_memory_pressure`](crate::ContextOptions::on_memory_pressure) has its
/// function told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPressure {
    /// What the memory is for: the label of a tensor, or words for a model or a session as a whole.
    pub what: String,
    /// Its bytes.
    pub bytes: u64,
    /// The limit that they do not fit, [`Context::limit_memory`](crate::Context::limit_memory);
    /// `None` where the device has no memory left.
    pub limit: Option<u64>,
    /// What is live, the most first.
    pub live: Vec<LiveMemory>,
}

impl MemoryPressure {
    /// The bytes that have to go for the request to fit the limit; `None` where the device has no
    /// memory left, which says no number.
    pub fn missing(&self) -> Option<u64> {
        let live = self.live.iter().fold(self.bytes, |sum, live| sum.saturating_add(live.bytes));
        Some(live.saturating_sub(self.limit?))
    }
}

/// A function of the app's: see
/// [`ContextOptions::on_memory_pressure`](crate::ContextOptions::on_memory_pressure).
#[derive(Clone)]
pub(crate) struct FreeMemory(Arc<Free>);

type Free = dyn Fn(&MemoryPressure) + Send + Sync;

impl FreeMemory {
    pub fn new(free: impl Fn(&MemoryPressure) + Send + Sync + 'static) -> Self {
        Self(Arc::new(free))
    }

    pub fn call(&self, pressure: &MemoryPressure) {
        (self.0)(pressure);
    }
}

impl fmt::Debug for FreeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FreeMemory")
    }
}

/// The memory that something needs while it is used, in bytes by kind: the GPU's, but for `host`.
/// Sizes are those of buffers, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footprint {
    /// Of a model: all its tensors, but for those of offloaded layers, which have two slots
    /// instead.
    pub weights: u64,
    /// Keys and values of the tokens so far, and the angles of positions.
    pub cache: u64,
    /// Intermediate results: of a pass over a prompt, and of the steps that are kept.
    pub activations: u64,
    /// What is copied back.
    pub staging: u64,
    /// Of a model: the offloaded layers, in host memory that the device copies from.
    pub host: u64,
}

impl Footprint {
    /// The label under which [`Context::live_memory`](crate::Context::live_memory) counts a model's
    /// tensors.
    pub const WEIGHTS: &str = "weights";
    /// That of keys and values.
    pub const CACHE: &str = "cache";
    /// That of a model's intermediate results.
    pub const ACTIVATIONS: &str = "activations";
    /// That of what is copied back.
    pub const STAGING: &str = "staging";

    /// Both together.
    #[cfg(feature = "models")]
    pub(crate) fn and(self, other: Self) -> Self {
        let sum = u64::saturating_add;
        Self {
            weights: sum(self.weights, other.weights),
            cache: sum(self.cache, other.cache),
            activations: sum(self.activations, other.activations),
            staging: sum(self.staging, other.staging),
            host: sum(self.host, other.host),
        }
    }

    /// All that is GPU memory.
    pub fn total(&self) -> u64 {
        [self.weights, self.cache, self.activations, self.staging]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Buffers in use under one label: see [`Context::with_label`](crate::Context::with_label).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveMemory {
    /// What they are for.
    pub label: Arc<str>,
    /// How many there are.
    pub buffers: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl LiveMemory {
    pub(crate) fn new(label: Arc<str>, buffers: usize, bytes: u64) -> Self {
        Self { label, buffers, bytes }
    }
}

impl fmt::Display for LiveMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} in {}", self.bytes, self.label, self.buffers)
    }
}

/// What is live, as a part of a message.
pub(crate) fn listed(live: &[LiveMemory]) -> String {
    const SHOWN: usize = 8;
    let lines: Vec<_> = live.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = if live.len() > SHOWN { ", .." } else { "" };
    if lines.is_empty() {
        "nothing is live".into()
    } else {
        format!("live, in bytes and buffers: {}{more}", lines.join(", "))
    }
}
