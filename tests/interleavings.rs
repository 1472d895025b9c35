//! The orders in which threads may take their steps: the runtime's own files, compiled with the
//! locks, channels and threads of the crate shuttle, which tries many such orders, and with a
//! device that is a few counters. `gpu/device/sync.rs` is where they have those of std.

#![allow(
    dead_code,
    unexpected_cfgs,
    hidden_glob_reexports,
    reason = "files of another crate, and what they know of wgpu"
)]

// Their wgpu is this file.
extern crate self as wgpu;

pub use bitnet_wgpu::wgpu::*;
use shuttle::{
    sync::{Arc, Mutex, PoisonError},
    thread,
};
use std::{
    hash::{Hash, Hasher},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

#[path = "../src/error.rs"]
mod error;
#[path = "../src/memory.rs"]
mod memory;
#[path = "../src/files"]
mod files {
    pub mod display;
}
mod language {
    pub use bitnet_wgpu::kernel::ShaderLanguage;
}
mod shape {
    pub use bitnet_wgpu::Shape;
}
mod kernel {
    pub mod declaration {
        pub use bitnet_wgpu::{Kernel, internals::Variant, kernel::KernelRef};
    }
}

#[path = "../src/gpu"]
mod gpu {
    pub mod memory {
        pub mod pool;
    }

    pub mod device {
        pub mod poll;

        pub mod sync {
            pub use shuttle::{
                sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc},
                thread,
            };
        }

        pub mod metal {
            /// Of Metal's own there is none.
            pub fn shared_buffer(
                _: &crate::Device,
                _: &crate::BufferDescriptor<'_>,
            ) -> Option<crate::Buffer> {
                None
            }
        }

        pub mod scopes {
            use crate::{
                Device,
                error::{Error, Result},
            };

            /// A buffer that is not there is the one complaint of this device.
            pub fn guarded<R>(
                device: &Device,
                during: impl FnOnce() -> String,
                work: impl FnOnce() -> R,
            ) -> Result<R> {
                let refused = device.refused();
                let result = work();
                match device.refused() == refused {
                    true => Ok(result),
                    false => Err(Error::OutOfMemory {
                        during: during(),
                        message: String::new(),
                        live: Vec::new(),
                    }),
                }
            }

            pub fn is_lost(device: &Device) -> bool {
                device.lost()
            }
        }
    }

    pub mod compile {
        pub mod pipelines;

        pub mod cache {
            pub struct KernelCache;
        }

        pub mod pipeline {
            use super::cache::KernelCache;
            use crate::{
                Device,
                error::{Error, Result},
                kernel::declaration::{Kernel, Variant},
            };
            use bitnet_wgpu::kernel::ShaderLanguage;

            pub struct Pipeline {
                pub language: ShaderLanguage,
            }

            /// Others have their turn meanwhile; what is named so does not compile.
            pub fn build(
                _: &Device,
                kernel: &Kernel,
                variant: &Variant,
                _: Option<&Variant>,
                _: Option<&KernelCache>,
            ) -> Result<Pipeline> {
                shuttle::thread::yield_now();
                match kernel.name {
                    "broken" => Err(Error::Shader {
                        kernel: kernel.name,
                        language: variant.language,
                        message: String::new(),
                    }),
                    _ => Ok(Pipeline { language: variant.language }),
                }
            }
        }
    }
}

use error::{Error, Result};
use gpu::{
    compile::pipelines::Pipelines,
    device::poll::{PollThread, Waits},
    memory::pool::{Pool, Pooled},
};

/// Memory in bytes, and what becomes of waits.
#[derive(Clone, Default)]
pub struct Device(std::sync::Arc<State>);

#[derive(Default)]
struct State {
    buffers: AtomicU64,
    /// Bytes that exist, the most that may, and how often more was wanted.
    bytes: AtomicU64,
    memory: AtomicU64,
    refused: AtomicUsize,
    /// The submission from which on waits fail, counted from 1, and how.
    fails: AtomicU64,
    how: AtomicUsize,
}

#[derive(Clone)]
pub struct Buffer(std::sync::Arc<Allocation>);

struct Allocation {
    id: u64,
    size: u64,
    usage: BufferUsages,
    device: Device,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.device.0.bytes.fetch_sub(self.size, Relaxed);
    }
}

impl Hash for Buffer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl Buffer {
    pub fn size(&self) -> u64 {
        self.0.size
    }

    pub fn usage(&self) -> BufferUsages {
        self.0.usage
    }
}

pub type SubmissionIndex = u64;

pub enum PollType {
    Wait { submission_index: Option<SubmissionIndex>, timeout: Option<Duration> },
    Poll,
}

#[derive(Debug, thiserror::Error)]
pub enum PollError {
    #[error("timeout")]
    Timeout,
    #[error("wrong")]
    Wrong,
}

const TIMEOUT: usize = 0;
const WRONG: usize = 1;
const PANIC: usize = 2;

impl Device {
    fn with_memory(bytes: u64) -> Self {
        let device = Self::default();
        device.0.memory.store(bytes, Relaxed);
        device
    }

    /// A device on which waits fail from a submission on.
    fn failing(from: SubmissionIndex, how: usize) -> Self {
        let device = Self::default();
        device.0.fails.store(from, Relaxed);
        device.0.how.store(how, Relaxed);
        device
    }

    pub fn limits(&self) -> Limits {
        Limits { max_buffer_size: 1 << 30, ..Limits::default() }
    }

    pub fn create_buffer(&self, descriptor: &BufferDescriptor<'_>) -> Buffer {
        thread::yield_now();
        let &BufferDescriptor { size, usage, .. } = descriptor;
        if self.0.bytes.fetch_add(size, Relaxed) + size > self.0.memory.load(Relaxed) {
            self.0.refused.fetch_add(1, Relaxed);
        }
        Buffer(std::sync::Arc::new(Allocation {
            id: self.0.buffers.fetch_add(1, Relaxed),
            size,
            usage,
            device: self.clone(),
        }))
    }

    pub fn poll(&self, poll: PollType) -> Result<(), PollError> {
        thread::yield_now();
        let PollType::Wait { submission_index, .. } = poll else { return Ok(()) };
        let from = self.0.fails.load(Relaxed);
        match self.0.how.load(Relaxed) {
            _ if from == 0 || submission_index.is_none_or(|index| index < from) => Ok(()),
            TIMEOUT => Err(PollError::Timeout),
            WRONG => Err(PollError::Wrong),
            // As wgpu does where a driver says that the device is gone; nobody need see it.
            _ => std::panic::resume_unwind(Box::new("lost")),
        }
    }

    fn refused(&self) -> usize {
        self.0.refused.load(Relaxed)
    }

    fn lost(&self) -> bool {
        self.0.how.load(Relaxed) == PANIC
    }

    fn bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed)
    }
}

/// Tries as many orders as random choice gives, and as many in which few changes of turn are placed
/// anywhere.
fn in_many_orders(test: impl Fn() + Copy + Send + Sync + 'static) {
    shuttle::check_random(test, 2000);
    shuttle::check_pct(test, 2000, 3);
}

fn threads<const N: usize>(work: impl Fn(usize) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let spawn = |n| {
        let work = work.clone();
        thread::spawn(move || work(n))
    };
    let all: [_; N] = std::array::from_fn(spawn);
    all.into_iter().for_each(|thread| thread.join().unwrap());
}

/// The numbers of buffers that somebody has.
#[derive(Default)]
struct Had(Mutex<Vec<usize>>);

impl Had {
    fn with(&self, buffer: &Pooled, work: impl FnOnce()) {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!lock().contains(&buffer.id()), "one buffer for two");
        lock().push(buffer.id());
        work();
        lock().retain(|&id| id != buffer.id());
    }
}

const SIZES: [u64; 3] = [1024, 2048, 1000];

#[test]
fn pool_buffers_are_exclusive_and_within_the_limit() {
    in_many_orders(|| {
        const LIMIT: u64 = 4096;
        let (device, pool, had) =
            (Device::with_memory(u64::MAX), Arc::new(Pool::default()), Had::default());
        pool.limit(Some(LIMIT));
        let (of_threads, on_device) = (pool.clone(), device.clone());
        threads::<3>(move |n| {
            for round in 0..2 {
                let size = SIZES[(n + round) % 3];
                match of_threads.get(&on_device, size, BufferUsages::STORAGE, "tensors") {
                    Ok(buffer) => had.with(&buffer, thread::yield_now),
                    Err(Error::MemoryLimit { live, limit: LIMIT, .. }) => assert!(!live.is_empty()),
                    Err(error) => panic!("{error}"),
                }
                if n == 0 {
                    of_threads.trim();
                }
            }
        });
        let stats = pool.stats();
        assert!(stats.peak_bytes <= LIMIT, "{stats:?}");
        assert_eq!((stats.live_bytes, stats.fragmentation_bytes, pool.live()), (0, 0, Vec::new()));
        assert_eq!(stats.cached_bytes, device.bytes(), "what waits is all that there is");
        pool.trim();
        assert_eq!((pool.stats().cached_bytes, device.bytes()), (0, 0));
    });
}

/// A request is refused where others have all of it, and only there.
#[test]
fn failed_allocations_leave_the_pool_unchanged() {
    in_many_orders(|| {
        let (device, pool) = (Device::with_memory(2048), Arc::new(Pool::default()));
        let (of_threads, on_device) = (pool.clone(), device.clone());
        threads::<3>(move |n| {
            match of_threads.get(&on_device, SIZES[n], BufferUsages::STORAGE, "tensors") {
                Ok(buffer) => drop(buffer),
                Err(Error::OutOfMemory { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        });
        let stats = pool.stats();
        assert_eq!((stats.live_bytes, stats.fragmentation_bytes, pool.live()), (0, 0, Vec::new()));
        assert_eq!(stats.cached_bytes, device.bytes());
        // What waits is in the way of nothing.
        assert!(pool.get(&device, 2048, BufferUsages::STORAGE, "tensors").is_ok());
    });
}

#[test]
fn a_kernel_is_one_pipeline_for_all() {
    use bitnet_wgpu::{
        Kernel,
        internals::Variant,
        kernel::{KernelRef, Part, ShaderLanguage, Source},
    };
    const TEXT: &[Part] = &[];
    static ONE: Kernel = Kernel::new("one", &[], &[], &[Source::wgsl(TEXT)]);
    static BROKEN: Kernel = Kernel::new("broken", &[], &[], &[Source::wgsl(TEXT)]);
    in_many_orders(|| {
        let (device, pipelines, had) =
            (Device::default(), Arc::new(Pipelines::new(None)), Arc::new(Mutex::new(Vec::new())));
        let (of_threads, found) = (pipelines.clone(), had.clone());
        threads::<3>(move |n| {
            let variant = || Variant {
                language: ShaderLanguage::Wgsl,
                subgroups: false,
                fused: false,
                floats: Vec::new(),
            };
            let get = |kernel| of_threads.get(&device, &KernelRef::Static(kernel), variant(), None);
            let pipelines = [get(&ONE).unwrap(), get(&ONE).unwrap()];
            found.lock().unwrap().extend(pipelines);
            assert!(n != 0 || matches!(get(&BROKEN), Err(Error::Shader { .. })));
        });
        let had = had.lock().unwrap();
        assert!(
            had.iter().all(|pipeline| Arc::ptr_eq(pipeline, &had[0])),
            "two pipelines of one kernel"
        );
        assert_eq!(pipelines.len(), 1, "what does not compile is not kept");
    });
}

fn answers(results: [Result<()>; 3], how: usize) {
    for (index, result) in (1..).zip(results) {
        let right = match (index, how) {
            (1, _) => result.is_ok(),
            (_, TIMEOUT) => matches!(result, Err(Error::WaitLimit { .. })),
            (_, WRONG) => matches!(result, Err(Error::Gpu { .. })),
            _ => matches!(result, Err(Error::DeviceLost { .. })),
        };
        assert!(right, "submission {index} of waits that fail as {how}: {result:?}");
    }
}

/// Futures may outlive the thread that completes them, and waits may fail in all ways.
#[test]
fn every_wait_has_one_answer_of_its_own() {
    fn check<const HOW: usize>() {
        in_many_orders(|| {
            let device = Device::failing(2, HOW);
            let poll = Arc::new(
                PollThread::spawn(Waits::new(device, Some(Duration::from_secs(1)))).unwrap(),
            );
            let told = Arc::new(AtomicUsize::new(0));
            let (of_threads, counted) = (poll.clone(), told.clone());
            threads::<2>(move |_| {
                let waits = [1, 2, 3].map(|index| of_threads.done(index));
                for index in 1..=3 {
                    let told = counted.clone();
                    of_threads.watch(index, move |_| _ = told.fetch_add(1, Relaxed));
                }
                // One that nobody looks at.
                drop(of_threads.done(2));
                answers(waits.map(shuttle::future::block_on), HOW);
            });
            let last = poll.done(3);
            // Waits that were asked for are waited for before it ends.
            drop(poll);
            assert_eq!(told.load(Relaxed), 4, "two threads, two submissions that fail");
            assert!(shuttle::future::block_on(last).is_err());
        });
    }
    check::<TIMEOUT>();
    check::<WRONG>();
    check::<PANIC>();
}

/// A callback may hold the last of a context, and so have the poll thread end itself; nobody may
/// wait for that.
#[test]
fn the_last_context_may_go_on_any_thread() {
    in_many_orders(|| {
        let poll =
            Arc::new(PollThread::spawn(Waits::new(Device::failing(1, TIMEOUT), None)).unwrap());
        let (held, ended) = (poll.clone(), std::sync::Arc::new(AtomicUsize::new(0)));
        let told = ended.clone();
        poll.watch(1, move |_| {
            drop(held);
            told.fetch_add(1, Relaxed);
        });
        let wait = poll.done(2);
        drop(poll);
        assert!(matches!(shuttle::future::block_on(wait), Err(Error::WaitLimit { .. })));
        assert_eq!(ended.load(Relaxed), 1, "told in their order");
    });
}
