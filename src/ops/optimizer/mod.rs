//! Optimizers: weights in `f32` that follow their gradients, in one dispatch per tensor and in
//! place.
//!
//! There is no automatic differentiation. A program calls the `backward` of each op, in reverse
//! order. Most ops are [`Copy`], so that one value has both `forward` and `backward`. The gradients
//! of a matrix product are two matrix products:
//!
//! ```
//! use bitnet_wgpu::{
//!     Context, bitnet,
//!     optimizer::{AdamW, AdamWState},
//!     tensor::{self, Axes, Side},
//! };
//!
//! # fn main() -> bitnet_wgpu::Result<()> {
//! let (batch, inputs, classes) = (8, 32, 4);
//! let numbers: Vec<f32> = (0..batch * inputs).map(|i| (i as f32 * 0.7).sin()).collect();
//! let labels: Vec<u32> = (0..batch as u32).map(|row| row % 4).collect();
//!
//! let context = pollster::block_on(Context::new())?;
//! let w = context.upload(&numbers[..classes * inputs], [classes, inputs])?;
//! let (x, labels) = (context.upload(&numbers, [batch, inputs])?, context.upload(&labels, [batch])?);
//! let dloss = context.upload(&vec![1.0 / batch as f32; batch], [batch])?; // of their mean
//! let (adamw, state) = (AdamW::new(0.02), AdamWState::new(&context, w.shape())?);
//! let mut losses = Vec::new();
//! for step in 1..=20 {
//!     let mut recorder = context.encoder("step");
//!     let encoder = &mut recorder;
//!     let quantizer = bitnet::fake_quantize_weights(&w, 1.0);
//!     let ternary = quantizer.forward(encoder)?;
//!     let logits = tensor::matmul(&x, Side::transposed(&ternary.values)).forward(encoder)?;
//!     let loss = tensor::cross_entropy(&logits, &labels);
//!     let mean = tensor::mean(&loss.forward(encoder)?, Axes::ALL).forward(encoder)?;
//!
//!     let dlogits = loss.backward(encoder, &dloss)?;
//!     let dw = tensor::matmul(Side::transposed(&dlogits), &x).forward(encoder)?;
//!     let dw = quantizer.backward(encoder, &ternary.scale, &dw)?;
//!     adamw.step(encoder, step, &w, &dw, &state)?;
//!     recorder.submit()?;
//!     losses.push(pollster::block_on(mean.read())?[0]);
//! }
//! assert!(losses[19] < losses[0]);
//! # Ok(())
//! # }
//! ```

pub(crate) mod adamw;
pub(crate) mod clip;
pub(crate) mod lion;
pub(crate) mod sgd;
mod step;

family!(adamw, clip, lion, sgd; reference: adamw, clip, lion, sgd);
