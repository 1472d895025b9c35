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
//! let w = bitnet::WeightQuantizer::absmean().quantize(&mut encoder, &weights)?; // a TernaryMatrix
//! let y = bitnet::BitLinear::new(&w).forward(&mut encoder, &x)?; // Tensor<f32> [1, 1024]
//! encoder.submit()?;
//! println!("{:?}", &pollster::block_on(y.read())?[..4]);
//! # Ok(())
//! # }
//! ```
//!
//! | to | see |
//! | --- | --- |
//! | open a device, or use an app's own | [`Context`], [`ContextOptions`] |
//! | list the GPUs and choose one | [`Adapters`], [`device`] |
//! | put data on it and get it back | [`Tensor`], [`weights`] |
//! | record work, run it, run it again | [`Encoder`], [`Recording`] |
//! | quantize and multiply, on GPU or CPU | [`bitnet`] |
//! | the rest of a transformer, on GPU or CPU | [`transformer`] |
//! | recurrent layers: gated DeltaNet | [`recurrent`] |
//! | elementwise ops, reductions, softmax, losses and norms, with gradients | [`tensor`] |
//! | train: SGD, AdamW, Lion; losses and gradients (feature `train`) | `optimizer`, [`tensor`] |
//! | factorize and solve dense matrices (feature `linalg`) | `linalg` |
//! | compute on the CPU, without a GPU | [`cpu`] |
//! | run small calls on the CPU and large ones on the GPU (feature `auto`) | `auto` |
//! | have an op write, or add to, a tensor of yours | [`Out`] |
//! | check results with plain CPU code (feature `reference`) | `reference` |
//! | load whole models, generate and score text | [`model`] |
//! | read checkpoints | [`formats`] |
//! | generate JSON, or text by a grammar (feature `grammar`) | `model::Grammar` |
//! | profile and trace kernels, measure memory | [`telemetry`] |
//! | set the thresholds by which kernels are chosen | [`tuning`] |
//! | add a kernel | [`kernel`], [`gpu`] |
//!
//! The feature `internals` adds the module of that name, for this crate's own tests and tools. It
//! comes without any promise of stability.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc)]
#![cfg_attr(
    not(feature = "internals"),
    allow(dead_code, unused_imports, reason = "tests and tools use them")
)]

extern crate self as bitnet_wgpu;

#[cfg(feature = "auto")]
pub mod auto;
pub mod cpu;
mod element;
mod error;
mod files;
#[cfg(feature = "formats")]
pub mod formats;
pub mod gpu;
#[cfg(feature = "internals")]
pub mod internals;
pub mod kernel;
mod language;
mod limits;
mod memory;
#[cfg(feature = "models")]
pub mod model;
mod ops;
mod shape;
mod spans;
pub mod tuning;
mod visibility;
pub mod weights;

pub use element::Element;
pub use error::{Error, ErrorKind, Result};
pub use gpu::{
    context::Context,
    device::{adapters::Adapters, context_options::ContextOptions},
    encoder::Encoder,
    out::Out,
    recording::Recording,
    tensor::Tensor,
};
pub use kernel::declaration::Kernel;
#[cfg(feature = "linalg")]
pub use ops::linalg;
#[cfg(feature = "train")]
pub use ops::optimizer;
#[cfg(feature = "reference")]
pub use ops::reference;
pub use ops::{bitnet, recurrent, tensor, transformer};
pub use shape::Shape;
pub use wgpu;

/// GPUs of the system: what they offer, and how one is chosen.
pub mod device {
    pub use crate::gpu::{
        capabilities::Capabilities,
        device::{
            adapter::Adapter, adapters::ChosenAdapter, context_options::AdapterChoice,
            msl::MslPolicy,
        },
    };
}

/// Kernel times, traces, peak rates, memory statistics and the state of a GPU.
pub mod telemetry {
    pub use crate::{
        gpu::{
            observe::{
                health::{Health, Reading, Thermal},
                profile::{Clock, Profile, StepTime},
                shader_log::{LogRecord, LogRecords, LogValue, ShaderLog},
            },
            trace::{Trace, Tracing},
        },
        memory::{Footprint, LiveMemory, MemoryPressure, MemoryStats},
        ops::measure::{PeakBandwidth, peak_compute},
    };
}

/// The programs of the README and of pages of docs/, run as tests.
#[cfg(all(doctest, feature = "models"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/guide/custom-kernels.md")]
#[doc = include_str!("../docs/guide/gpu-and-memory.md")]
#[cfg_attr(feature = "grammar", doc = include_str!("../docs/guide/library.md"))]
#[doc = include_str!("../docs/guide/recovery.md")]
#[doc = include_str!("../docs/reference/determinism.md")]
struct Readme;
