//! Ops that run on the CPU or on the GPU, wherever they are faster.
//!
//! A round trip to the GPU takes as long as tens of thousands of additions, so small calls stay on
//! the CPU, which computes them by [`cpu`](crate::cpu): with vector instructions, and on all cores
//! where that pays. From which size on the GPU is faster depends on the machine and on the op.
//! [`Auto`] measures it once, by calls: the first of a size runs on both sides.
//!
//! ```
//! use bitnet_wgpu::auto::{Auto, Target};
//!
//! # fn main() -> bitnet_wgpu::Result<()> {
//! let auto = Auto::new(None); // or a context
//! let answer = auto.silu(&[0.0, 1.0, -1.0])?;
//! assert_eq!(answer.value.len(), 3); // a Vec<f32>
//! assert_eq!(answer.ran.on, Target::Cpu);
//! println!("{}", answer.ran); // silu on the CPU, since there is no GPU
//! # Ok(())
//! # }
//! ```
//!
//! Operands are slices or tensors. What is on the GPU stays there, and so does the work that
//! follows: see [`Operand`]. For many ops in a row, record them in one [`Encoder`](crate::Encoder).
//!
//! | op | CPU and GPU |
//! | --- | --- |
//! | [`add`](Auto::add), [`mul`](Auto::mul), [`relu2`](Auto::relu2) | bit-identical |
//! | [`rms_norm`](Auto::rms_norm) | bit-identical |
//! | [`quantize_activations`](Auto::quantize_activations), [`quantize_weights`](Auto::quantize_weights) | bit-identical |
//! | [`bitlinear`](Auto::bitlinear), [`bitlinear_quantized`](Auto::bitlinear_quantized) | bit-identical |
//! | [`silu`](Auto::silu), [`gelu`](Auto::gelu), [`softmax`](Auto::softmax), [`sum`](Auto::sum), [`layer_norm`](Auto::layer_norm), [`matmul`](Auto::matmul), [`attention`](Auto::attention) | they differ in their last bits, so a call may give other bits than an equal call before |
//!
//! Other ops of the GPU have no fast form on the CPU, and are not here.

mod answer;
mod attention;
mod crossing;
mod dispatch;
mod elementwise;
mod linear;
mod operand;
mod quantize;
mod rows;

pub use answer::{Answer, GpuFailure, Ran, Target, Why};
pub use dispatch::Auto;
pub use linear::AutoTernary;
pub use operand::{Numbers, Operand, Placed, Stored, Value};
