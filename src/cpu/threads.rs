//! The threads that CPU ops and models compute on.

use crate::error::{Error, Result};
use rayon::prelude::*;
use std::{
    cell::Cell,
    sync::{Arc, LazyLock},
};

/// A pool of threads that CPU ops and models compute on.
///
/// By default all ops and models share one pool. It has a thread for each core, or as many as the
/// environment variable `RAYON_NUM_THREADS` says. [`run`](Self::run) uses another one. Results do
/// not depend on the number of threads.
#[derive(Clone, Default)]
pub struct Threads(Option<Arc<rayon::ThreadPool>>);

thread_local! {
    /// Whether this thread is one of a pool of this crate.
    static IN_POOL: Cell<bool> = const { Cell::new(false) };
}

impl Threads {
    /// More than processors have: a larger number is a mistake, and would be as many stacks.
    const MOST: usize = 1024;

    /// Checks a number of threads.
    pub(crate) fn check(count: usize) -> Result<()> {
        if (1..=Self::MOST).contains(&count) {
            return Ok(());
        }
        let what = format!("{count}; a pool has 1 to {}", Self::MOST);
        Err(Error::Invalid { op: "threads", what })
    }

    /// Starts a pool of `count` threads, from 1 to 1024.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another number; [`Error::Gpu`] if the system starts no more threads.
    pub fn new(count: usize) -> Result<Self> {
        Self::check(count)?;
        let failed = |e: rayon::ThreadPoolBuildError| Error::Gpu {
            during: "starting threads".into(),
            message: e.to_string(),
        };
        Ok(Self(Some(Arc::new(pool(count).map_err(failed)?))))
    }

    /// Runs `work` on the pool: all CPU ops in it compute on these threads. It must not wait for
    /// other work of the pool.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.0 {
            Some(pool) => pool.install(work),
            None => on_all_cores(work),
        }
    }
}

/// A pool of threads; 0 is one for each core.
fn pool(count: usize) -> std::result::Result<rayon::ThreadPool, rayon::ThreadPoolBuildError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(count)
        .thread_name(|i| format!("bitnet-wgpu {i}"))
        .start_handler(|_| IN_POOL.set(true))
        .build()
}

/// Runs `work`, which never waits for other work, on the crate's own pool of threads. The caller's
/// pool will not do: where all of its threads wait for a model, nobody would be left to compute.
pub(crate) fn on_all_cores<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    static POOL: LazyLock<Option<rayon::ThreadPool>> = LazyLock::new(|| pool(0).ok());
    match &*POOL {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

/// Runs an op's `work` on the pool that the caller is in, or else on the shared one, if it is
/// `worth` the microseconds that threads take to wake up.
pub(super) fn enter<T: Send>(worth: bool, work: impl FnOnce() -> T + Send) -> T {
    if !worth || IN_POOL.get() { work() } else { on_all_cores(work) }
}

/// Calls `compute(first, chunk)` for chunks of `y` that begin at number `first`, on the threads
/// where there are several.
pub(super) fn by_chunks(
    y: &mut [f32],
    chunk: usize,
    compute: impl Fn(usize, &mut [f32]) + Send + Sync,
) {
    if y.is_empty() {
        return;
    }
    if y.len() <= chunk {
        return compute(0, y);
    }
    enter(true, || {
        y.par_chunks_mut(chunk).enumerate().for_each(|(i, y)| compute(i * chunk, y));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_the_requested_threads() {
        for count in [1, 2, 3] {
            let threads = Threads::new(count).unwrap();
            assert_eq!(threads.run(rayon::current_num_threads), count);
            // Ops in it stay in it.
            assert_eq!(threads.run(|| enter(true, rayon::current_num_threads)), count);
        }
    }

    #[test]
    fn impossible_numbers_of_threads_are_refused() {
        for count in [0, 1025, usize::MAX] {
            let error = Threads::new(count).err().unwrap();
            assert_eq!(error.to_string(), format!("threads: {count}; a pool has 1 to 1024"));
        }
    }

    #[test]
    fn small_work_stays_in_the_calling_thread() {
        let own = std::thread::current().id();
        assert_eq!(enter(false, || std::thread::current().id()), own);
        assert_ne!(enter(true, || std::thread::current().id()), own);
    }

    #[test]
    fn chunks_cover_everything_once() {
        for (len, chunk) in [(0, 4), (3, 4), (4, 4), (5, 4), (1000, 7)] {
            let mut y = vec![-1.0; len];
            by_chunks(&mut y, chunk, |first, y| {
                y.iter_mut().enumerate().for_each(|(i, y)| *y += (first + i + 1) as f32);
            });
            by_chunks(&mut y[..0], chunk, |_, _| unreachable!("nothing to compute"));
            assert!(y.iter().enumerate().all(|(i, y)| *y == i as f32), "{len} by {chunk}");
        }
    }
}
