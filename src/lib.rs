//! BitNet (1-bit and ternary language-model weights) on any GPU, through [wgpu]; hand-written Metal
//! kernels for Apple Silicon.
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
//! | open a device, or use an app's own | [`Context`], [`ContextOptions`] |
//! | see which GPUs there are | [`Adapters`] |
//! | put data on it and get it back | [`Tensor`], [`PackedTernary`], [`TernaryMatrix`] |
//! | record work, run it, run it again | [`Encoder`], [`Recording`] |
//! | quantise and multiply, on GPU or CPU | [`bitnet`] |
//! | the rest of a transformer, on GPU or CPU | [`transformer`] |
//! | elementwise ops, reductions, softmax, losses and norms, with gradients | [`tensor`] |
//! | train: SGD, AdamW, Lion | [`optimizer`] |
//! | factorize and solve dense matrices (feature `linalg`) | `linalg` |
//! | run small calls on the CPU and large ones on the GPU (feature `auto`) | `auto` |
//! | have an op write, or add to, a tensor of yours | [`Out`] |
//! | load whole models, generate and score text | [`model`] |
//! | read checkpoints | [`formats`] |
//! | read files with a bound, write them atomically | [`files`] |
//! | see what takes time | [`Context::trace`], [`Recording::profile`], [`measure`] |
//! | add a kernel | [`kernel`], [`contract`] |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc)]

extern crate self as bitnet_wgpu;

#[cfg(feature = "auto")]
pub mod auto;
mod choices;
#[cfg(feature = "models")]
mod cpu;
mod element;
mod error;
pub mod files;
#[cfg(feature = "formats")]
pub mod formats;
mod gpu;
pub mod kernel;
mod language;
mod limits;
mod memory;
#[cfg(feature = "models")]
pub mod model;
mod ops;
mod shape;
mod spans;
mod weights;

#[doc(hidden)]
pub use bytemuck;
pub use choices::{Choice, Tuning};
pub use element::{Element, ElementType, Float};
pub use error::{Error, ErrorKind, Result};
pub use gpu::{
    adapters::{Adapter, AdapterChoice, Adapters, ChooseAdapter, ChosenAdapter, ContextOptions},
    capabilities::{Capabilities, SubmissionLimit},
    context::Context,
    encoder::Encoder,
    health::{Health, Reading, Thermal},
    msl::MslPolicy,
    out::Out,
    profile::{Clock, Profile, StepTime},
    recording::{Dispatch, Extent, Recording, Submission},
    tensor::{Bind, Pieces, Residency, Tensor},
    trace::{Trace, Tracing},
};
pub use half::f16;
pub use kernel::{Kernel, contract};
pub use language::ShaderLanguage;
pub use memory::{Footprint, FreeMemory, LiveMemory, MemoryPressure, MemoryStats};
#[cfg(feature = "linalg")]
pub use ops::linalg;
pub use ops::{bitnet, catalog, measure, optimizer, reference, tensor, transformer};
pub use shape::Shape;
pub use weights::{
    dense::{DenseElement, DenseMatrix, PackedDense},
    int::{affine::Affine, bits::Bits, matrix::IntMatrix, packed::PackedInt},
    ternary::{matrix::TernaryMatrix, packed::PackedTernary, scales::Scales},
};
pub use wgpu;

/// The programs of the README and of docs/app.md, run as tests.
#[cfg(all(doctest, feature = "models"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/app.md")]
struct Readme;
