//! Prefetches memory before it is read.

/// Prefetches a cache line, on x86-64; elsewhere does nothing.
#[allow(unsafe_code, unused_unsafe)]
#[inline(always)]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch may name any address, and reads nothing that the program sees. (Later
    // compilers know that it is safe.)
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches as many bytes as `these` take, from `bytes` bytes after their beginning on.
#[inline(always)]
pub fn prefetch_after<T>(these: &[T], bytes: usize) {
    let first = these.as_ptr().cast::<u8>().wrapping_add(bytes);
    (0..size_of_val(these)).step_by(64).for_each(|line| prefetch(first.wrapping_add(line)));
}
