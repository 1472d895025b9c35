//! dropout: y = x / (1 - rate) with probability 1 - rate, else 0; and the same after relu. Srivastava et al. 2014, "Dropout: a simple way to prevent
//! neural networks from overfitting".

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::philox::word,
    params, wgsl,
};

params! { struct Params { length: u32, seed_low: u32, seed_high: u32, threshold: u32, factor: f32, relu: u32 } }

static DROPOUT: Kernel = Kernel::trusted(
    "dropout",
    Params::FIELDS,
    &[read("x", Float("X")), read("at", Float("X")), read_write("y", Float("X"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "shared/philox", "tensor/dropout"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&DROPOUT];

/// x / (1 - rate) for elements that are kept, 0 for the share `rate` that is not. Which ones follows from `seed` and the place of the element alone: it
/// is the same on every backend, and for the same seed every time. Its gradient is the same op on dy, with the same seed.
///
/// # Errors
/// [`Error::Invalid`] unless 0 <= rate < 1.
pub fn dropout<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, rate: f32, seed: u64) -> Result<Tensor<T>> {
    record(encoder, x, x, rate, seed, false)
}

/// [`dropout`] of max(x, 0), in one dispatch.
///
/// # Errors
/// As [`dropout`].
pub fn relu_dropout<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, rate: f32, seed: u64) -> Result<Tensor<T>> {
    record(encoder, x, x, rate, seed, true)
}

/// The gradient of [`relu_dropout`] at `x`, where `dy` is that of its output.
///
/// # Errors
/// As [`dropout`]; [`Error::Shape`] if `dy` has another shape than `x`.
pub fn relu_dropout_backward<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, dy: &Tensor<T>, rate: f32, seed: u64) -> Result<Tensor<T>> {
    if dy.shape() != x.shape() {
        return Err(Error::Shape { op: "relu_dropout_backward", what: "dy", expected: x.shape().to_string(), found: dy.shape() });
    }
    record(encoder, dy, x, rate, seed, true)
}

fn record<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, at: &Tensor<T>, rate: f32, seed: u64, relu: bool) -> Result<Tensor<T>> {
    let (threshold, factor) = (threshold(rate)?, factor(rate));
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    let (length, relu) = (x.len() as u32, relu.into());
    let params = Params { length, seed_low: seed as u32, seed_high: (seed >> 32) as u32, threshold, factor, relu };
    encoder.dispatch(&DROPOUT, &params, &[x, at, &y], [x.len().div_ceil(4), 1, 1])?;
    Ok(y)
}

/// Below which a random word drops its element.
fn threshold(rate: f32) -> Result<u32> {
    if !(0.0..1.0).contains(&rate) {
        return Err(Error::Invalid { op: "dropout", what: format!("a rate of {rate}: it is from 0 to below 1") });
    }
    Ok((f64::from(rate) * 2_f64.powi(32)) as u32)
}

fn factor(rate: f32) -> f32 {
    1.0 / (1.0 - rate)
}

/// The CPU twin of [`dropout`]: the same bits.
///
/// # Errors
/// As [`dropout`].
pub fn dropout_cpu(x: &[f32], rate: f32, seed: u64) -> Result<Vec<f32>> {
    let (threshold, factor) = (threshold(rate)?, factor(rate));
    let kept = |(i, x): (usize, &f32)| if word(seed, i) >= threshold { factor * x } else { 0.0 };
    Ok(x.iter().enumerate().map(kept).collect())
}
