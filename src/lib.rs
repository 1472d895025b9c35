//! BitNet (1-bit and ternary language-model weights) on any GPU, through [wgpu]; hand-written Metal kernels for Apple Silicon.
//!
//! ```no_run
//! use bitnet_wgpu::{Context, bitnet};
//!
//! # fn main() -> bitnet_wgpu::Result<()> {
//! let context = pollster::block_on(Context::new())?;
//! let weights = context.upload(&vec![0.1f32; 1024 * 2048], [1024, 2048])?;
//! let x = context.upload(&vec![1.0f32; 2048], [1, 2048])?;
//!
//! let mut encoder = context.encoder("bitlinear");
//! let w = bitnet::quantize_weights(&mut encoder, &weights)?; // a TernaryMatrix
//! let y = bitnet::bitlinear(&mut encoder, &x, &w)?; // Tensor<f32> [1, 1024]
//! encoder.submit()?;
//! println!("{:?}", &pollster::block_on(y.read())?[..4]);
//! # Ok(())
//! # }
//! ```
//!
//! | to | see |
//! | --- | --- |
//! | open a device, or use an app's own | [`Context`] |
//! | put data on it and get it back | [`Tensor`], [`PackedTernary`], [`TernaryMatrix`] |
//! | record work, run it, run it again | [`Encoder`], [`Recording`] |
//! | quantise and multiply, on GPU or CPU | [`bitnet`] |
//! | the rest of a transformer, on GPU or CPU | [`transformer`] |
//! | load whole models, generate and score text | [`model`] |
//! | read checkpoints | [`formats`] |
//! | see what takes time | [`Recording::profile`], [`measure`] |
//! | add a kernel | [`kernel`], [`contract`] |

#![deny(unsafe_code)]
#![warn(missing_docs)]

extern crate self as bitnet_wgpu;

mod capabilities;
mod context;
pub mod contract;
mod dense;
mod encoder;
mod error;
#[cfg(feature = "formats")]
pub mod formats;
pub mod kernel;
#[cfg(feature = "models")]
pub mod model;
mod ops;
mod pipeline;
mod pool;
mod profile;
mod readback;
mod shape;
mod tensor;
mod ternary;

#[doc(hidden)]
pub use bytemuck;
pub use capabilities::Capabilities;
#[doc(hidden)]
pub use context::Translate;
pub use context::{Context, ShaderLanguage};
pub use dense::{DenseElement, DenseMatrix, PackedDense};
pub use encoder::{Dispatch, Encoder, Recording, Submission};
pub use error::{Error, Result};
pub use half::f16;
pub use kernel::Kernel;
pub use ops::{CATALOG, bitnet, catalog, measure, transformer};
pub use pool::PoolStats;
pub use profile::{Clock, Profile, StepTime};
pub use shape::Shape;
pub use tensor::{Bind, Element, ElementType, Float, Tensor};
pub use ternary::{PackedTernary, Scales, TernaryMatrix};
pub use wgpu;
