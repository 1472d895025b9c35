//! Memory that is asked for before it is read.

/// Has a line of the cache brought near, where the processor has an instruction for it that this
/// crate uses.
#[allow(unsafe_code, unused_unsafe)]
#[inline(always)]
pub fn bring_near(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch may name any address, and reads nothing that the program sees. (Later
    // compilers know that it is safe.)
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// As many bytes as `these` are, so many after them.
#[inline(always)]
pub fn bring_near_after<T>(these: &[T], bytes: usize) {
    let first = these.as_ptr().cast::<u8>().wrapping_add(bytes);
    (0..size_of_val(these)).step_by(64).for_each(|line| bring_near(first.wrapping_add(line)));
}
