//! Ops on the CPU, with vector instructions and on all cores: what models on the CPU run.
//!
//! They take slices of the host and packed weights, and return vectors; no GPU is needed. Names and
//! options are those of the ops on the GPU. The instruction set is chosen at run time: AVX-512 VNNI,
//! AVX-VNNI or AVX2 on x86-64, matrix or dot products of NEON on AArch64, plain loops elsewhere.
//!
//! Results are bit-identical to [`reference`](crate::reference), except for [`silu`] (within two
//! units in the last place), [`softmax`] and [`layer_norm`] (within one). Without SiLU and GELU, [`BitLinear`] is
//! bit-identical to the GPU too. No result depends on the instruction set or on the number of
//! threads.
//!
//! Small calls run in the calling thread, larger ones on a pool of [`Threads`]:
//!
//! ```
//! use bitnet_wgpu::cpu::{self, Threads};
//!
//! # fn main() -> bitnet_wgpu::Result<()> {
//! let (a, b) = (vec![1.0; 300 * 200], vec![0.5; 200 * 100]);
//! let y = cpu::matmul(&a, &b, [300, 200, 100])?; // on all cores
//! let two = Threads::new(2)?;
//! assert_eq!(two.run(|| cpu::matmul(&a, &b, [300, 200, 100]))?, y); // on two threads
//! # Ok(())
//! # }
//! ```

pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod dense;
mod f16_convert;
pub(crate) mod isa;
pub(crate) mod linear;
pub(crate) mod matmul;
pub(crate) mod ops;
mod prefetch;
pub(crate) mod quantize;
pub(crate) mod ternary;
pub(crate) mod ternary_float;
pub(crate) mod threads;

pub use crate::{
    ops::bitnet::host_activations::{HostActivations, HostCodes},
    weights::ternary::interleaved::InterleavedTernary,
};
pub use attention::{attention, rope};
pub use cache::KvCache;
pub use linear::BitLinear;
pub use matmul::matmul;
pub use ops::{
    add, dense_gemv, embed_ternary, gelu, layer_norm, mul, relu2, rms_norm, silu, softmax, sum,
};
pub use quantize::{quantize_activations, quantize_weights};
pub use threads::Threads;
