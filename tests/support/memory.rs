//! An allocator that gives little at a time: what asks for more ends the process, and its test.

use std::alloc::{GlobalAlloc, Layout, System};

/// More than any sound file of these tests needs at a time.
const MOST: usize = 256 << 20;

/// For binaries that read files of strangers: a size in a file must not become a request for memory
/// before it has been compared with the file.
pub struct Bounded;

// SAFETY: what is asked of the system is given on, and a null says that there is none.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST {
            std::ptr::null_mut()
        } else {
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > MOST {
            std::ptr::null_mut()
        } else {
            unsafe { System.realloc(pointer, layout, size) }
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}
