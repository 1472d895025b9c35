//! Compiles Metal kernels for the CPU and runs them, so that hand-written kernels can be tested
//! without an Apple GPU.
//!
//! ```no_run
//! let text = "
//!     #include <metal_stdlib>
//!     using namespace metal;
//!     [[max_total_threads_per_threadgroup(32)]]
//!     kernel void total(device const int* x [[buffer(0)]], device int* y [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
//!         const int sum = simd_sum(x[i]);
//!         if (i == 0) y[0] = sum;
//!     }";
//! let program = msl_host::Program::compile(text, "total", [32, 1, 1])?;
//! let mut buffers = [(0..32).flat_map(|i: i32| i.to_ne_bytes()).collect(), vec![0; 4]];
//! program.dispatch(&mut buffers, [1, 1, 1], msl_host::Order::Reverse)?;
//! assert_eq!(buffers[1], 496i32.to_ne_bytes());
//! # Ok::<(), msl_host::Error>(())
//! ```
//!
//! The README says what this proves about a kernel and what not.

mod compiler;
mod cuda;
pub mod front;
pub mod opencl;
mod rewrite;
mod text;

pub use cuda::cuda;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Why a kernel could not be compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written, or a program not started.
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    /// A kernel's signature or attributes are missing something or not supported here.
    #[error("{0}")]
    Text(String),
    /// The C++ compiler, `c++` or the one that `CXX` names, does not run.
    #[error("no C++ compiler: {0}")]
    NoCompiler(String),
    /// The compiler failed with this output.
    #[error("{output}")]
    Compile { output: String },
    /// The compiled library could not be loaded.
    #[error(transparent)]
    Load(#[from] libloading::Error),
    /// The number of buffers is not the kernel's number of slots.
    #[error("the kernel has {expected} buffers, {found} are given")]
    Buffers { expected: usize, found: usize },
    /// The kernel did something that Metal leaves undefined.
    #[error("{fault:?}: {message}")]
    Run { fault: Fault, message: String },
}

/// A kernel's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Some threads wait at a barrier while others wait elsewhere or have returned.
    DivergentBarrier,
    /// Some lanes are in a SIMD-group operation while others wait elsewhere or have returned.
    DivergentSimd,
    /// More than 32 KiB of threadgroup memory.
    ThreadgroupMemory,
    /// A read or write at a guard page, or a write to the padding around a buffer.
    OutOfBounds,
}

/// The order in which threadgroups, SIMD-groups and lanes run, and in which a SIMD-group's floats
/// are added. Metal guarantees none.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// First to last.
    Forward,
    /// Last to first.
    Reverse,
    /// Shuffled at every step.
    Random(u64),
}

/// A compiled kernel.
pub struct Program {
    entry: *const c_void,
    run: unsafe extern "C" fn(*const Dispatch, *mut c_char, u64) -> c_int,
    slots: usize,
    workgroup_size: [u32; 3],
    _library: libloading::Library,
}

// SAFETY: `entry` is a function in `_library`, which lives as long, and neither has state that
// threads share.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

/// Mirrors `msl_buffer` in `runtime/runtime.h`.
#[repr(C)]
struct Buffer {
    data: *mut c_void,
    bytes: u64,
}

/// Mirrors `msl_dispatch` in `runtime/runtime.h`.
#[repr(C)]
struct Dispatch {
    entry: *const c_void,
    buffers: *const Buffer,
    buffer_count: c_uint,
    threadgroups: [c_uint; 3],
    threads: [c_uint; 3],
    order: c_uint,
    seed: u64,
}

impl Program {
    /// Compiles the kernel `entry` of a text for threadgroups of `workgroup_size` threads, unless
    /// it is in the cache.
    ///
    /// # Errors
    /// [`Error::Text`] if the kernel's `max_total_threads_per_threadgroup` is not the product of
    /// `workgroup_size`, or its signature is not supported; [`Error::Compile`] for errors that a
    /// C++ compiler finds.
    pub fn compile(text: &str, entry: &str, workgroup_size: [u32; 3]) -> Result<Self, Error> {
        let path = compiler::program(text, entry, workgroup_size.iter().product())?;
        // SAFETY: the libraries have no constructors, and the symbols have these types in
        // `compiler.rs` and `runtime/runtime.h`.
        unsafe {
            let library = libloading::Library::new(path)?;
            let entry = *library.get::<*const c_void>(b"msl_entry")?;
            let run = *library.get(b"msl_run")?;
            let slots = **library.get::<*const c_uint>(b"msl_slots")? as usize;
            Ok(Self { entry, run, slots, workgroup_size, _library: library })
        }
    }

    /// Runs a grid of threadgroups with `buffers` bound to slots 0, 1, ...
    ///
    /// # Errors
    /// [`Error::Buffers`]; [`Error::Run`] for a fault of the kernel, with the buffers as it left
    /// them.
    pub fn dispatch(
        &self,
        buffers: &mut [Vec<u8>],
        threadgroups: [u32; 3],
        order: Order,
    ) -> Result<(), Error> {
        if buffers.len() != self.slots {
            return Err(Error::Buffers { expected: self.slots, found: buffers.len() });
        }
        let buffers: Vec<_> = buffers
            .iter_mut()
            .map(|data| Buffer { data: data.as_mut_ptr().cast(), bytes: data.len() as u64 })
            .collect();
        let (order, seed) = match order {
            Order::Forward => (0, 0),
            Order::Reverse => (1, 0),
            Order::Random(seed) => (2, seed),
        };
        let dispatch = Dispatch {
            entry: self.entry,
            buffers: buffers.as_ptr(),
            buffer_count: buffers.len() as c_uint,
            threadgroups,
            threads: self.workgroup_size,
            order,
            seed,
        };
        let mut message = [0; 512];
        // SAFETY: all pointers are to live memory of the given sizes. The kernel works on copies;
        // stray writes hit guard pages.
        let fault = unsafe { (self.run)(&dispatch, message.as_mut_ptr(), message.len() as u64) };
        let fault = match fault {
            0 => return Ok(()),
            1 => Fault::DivergentBarrier,
            2 => Fault::DivergentSimd,
            3 => Fault::ThreadgroupMemory,
            _ => Fault::OutOfBounds,
        };
        // SAFETY: the runtime terminates the message with a zero.
        let message = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
        Err(Error::Run { fault, message })
    }
}
