//! glibc's allocator, which keeps freed memory for later: after a burst of large requests, a server
//! would have two or three times the memory it needs. Allocators of other systems return it by
//! themselves.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
mod glibc {
    use std::time::Duration;

    /// Bytes from which a block is mapped on its own, and unmapped when it is freed: glibc's
    /// default, which otherwise grows with what is freed.
    const MAPPED: libc::c_int = 128 << 10;
    /// Time between two returns of memory. One takes less than a millisecond, and the kernel hands
    /// out new pages quickly.
    const RETURN: Duration = Duration::from_secs(5);

    /// Has large blocks returned as soon as they are freed.
    pub fn keep_large_blocks_apart() {
        // SAFETY: it sets a number of the allocator's, which locks it.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED) };
    }

    /// Returns pages between small blocks now and then, for ever.
    pub async fn return_freed_memory() {
        loop {
            tokio::time::sleep(RETURN).await;
            // SAFETY: it may be called at any time from any thread; blocks in use are not touched.
            unsafe { libc::malloc_trim(0) };
        }
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod other {
    /// Nothing to do.
    pub fn keep_large_blocks_apart() {}

    /// Nothing to do.
    pub async fn return_freed_memory() {}
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub use glibc::{keep_large_blocks_apart, return_freed_memory};
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub use other::{keep_large_blocks_apart, return_freed_memory};
