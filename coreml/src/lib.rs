//! Writes a ternary language model as a Core ML package (`.mlpackage`) for macOS 15 and iOS 18, by
//! Core ML's public format. Nothing of it has run on Apple hardware yet.
//!
//! ```
//! use bitnet_coreml::{ExportOptions, export};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = bitnet_wgpu::formats::open("../assets/tales-22m")?;
//! let folder = tempfile::tempdir()?;
//! let options = ExportOptions::default().context(Some(128));
//! let written = export(&*model, folder.path().join("tales.mlpackage"), &[], options, |_, _| {})?;
//! assert_eq!((written.context, written.prefill), (128, 64));
//! # Ok(())
//! # }
//! ```
//!
//! The package has one ML Program with two functions:
//!
//! | function | inputs | output |
//! | --- | --- | --- |
//! | `decode` | `tokens` `[1, 1]`, `positions` `[1]`, `mask` `[1, 1, 1, context]` | `logits` `[1, 1, vocab]` |
//! | `prefill` | the same for a chunk of tokens, and `row` `[1]` | `logits` of the token `row` of the chunk |
//!
//! Both share the states `keys` and `values`, f16 `[layers, key-value heads, context, head size]`.
//! Shapes are fixed. `mask` is 0 where a token sees a position and -1e9 elsewhere. A short chunk is
//! padded: tokens behind the last one write to the cache, and the next call overwrites that.
//!
//! # Precision
//! Weights are exact: lookup tables of two bits give -1, 0 and 1, times the model's own scales in
//! f32. Embedding, LM head and norms are f32. Keys and values are rounded to f16, which is the
//! only type that states have; everything else is computed in f32. Int8 activations are integers in
//! f32, whose sums are exact in any order. Core ML does not say how `round` treats ties and how
//! exact `rsqrt`, `real_div` and `softmax` are, so results are close to this project's, and not
//! bit-identical.

#![deny(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc)]

mod attention;
mod blob;
mod error;
mod graph;
mod mil;
mod package;
#[allow(missing_docs, reason = "fields are those of the published format")]
pub mod proto;
#[cfg(target_os = "macos")]
mod run;
mod support;
mod weights;

pub use error::{Error, Result};
pub use package::{ExportOptions, Exported, export};
#[cfg(target_os = "macos")]
pub use run::{ComputeUnits, Ran, run};
