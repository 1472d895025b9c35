//! dropout: y = x / (1 - rate) with probability 1 - rate, else 0; and the same after relu.
//! Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::philox::word,
    params, wgsl,
};

params! { struct Params { length: u32, seed_low: u32, seed_high: u32, threshold: u32, factor: f32, relu: u32, add: u32 } }

static DROPOUT: Kernel = Kernel::trusted(
    "dropout",
    Params::FIELDS,
    &[read("x", Float("X")), read("at", Float("X")), read_write("y", Float("X"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "shared/philox", "tensor/dropout"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&DROPOUT];

/// x / (1 - rate) for elements that are kept, 0 for the share `rate` that is not. Which ones
/// follows from `seed` and the place of the element alone: it is the same on every backend, and for
/// the same seed every time. Its gradient is the same op on dy, with the same seed.
///
/// # Errors
/// [`Error::Invalid`] unless 0 <= rate < 1.
pub fn dropout<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    rate: f32,
    seed: u64,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    dropout_into(encoder, x, rate, seed, &y)?;
    Ok(y)
}

/// [`dropout`] into a tensor of the caller, another than `x`.
///
/// # Errors
/// As [`dropout`]; [`Error::Shape`] if it has another shape.
pub fn dropout_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    rate: f32,
    seed: u64,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    record(encoder, "dropout", x, x, (rate, seed), false, y.into())
}

/// [`dropout`] of max(x, 0), in one dispatch.
///
/// # Errors
/// As [`dropout`].
pub fn relu_dropout<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    rate: f32,
    seed: u64,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    relu_dropout_into(encoder, x, rate, seed, &y)?;
    Ok(y)
}

/// [`relu_dropout`] into a tensor of the caller, another than `x`.
///
/// # Errors
/// As [`dropout_into`].
pub fn relu_dropout_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    rate: f32,
    seed: u64,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    record(encoder, "relu_dropout", x, x, (rate, seed), true, y.into())
}

/// The gradient of [`relu_dropout`] at `x`, where `dy` is that of its output.
///
/// # Errors
/// As [`dropout`]; [`Error::Shape`] if `dy` has another shape than `x`.
pub fn relu_dropout_backward<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    dy: &Tensor<T>,
    rate: f32,
    seed: u64,
) -> Result<Tensor<T>> {
    let dx = Tensor::uninit(encoder.context(), x.shape())?;
    relu_dropout_backward_into(encoder, x, dy, rate, seed, &dx)?;
    Ok(dx)
}

/// [`relu_dropout_backward`] into a tensor of the caller, another than `x` and `dy`.
///
/// # Errors
/// As [`relu_dropout_backward`]; [`Error::Shape`] if it has another shape.
pub fn relu_dropout_backward_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    dy: &Tensor<T>,
    rate: f32,
    seed: u64,
    dx: impl Into<Out<'y, T>>,
) -> Result<()> {
    let op = "relu_dropout_backward";
    if dy.shape() != x.shape() {
        return Err(Error::Shape {
            op,
            what: "dy",
            expected: x.shape().to_string(),
            found: dy.shape(),
        });
    }
    record(encoder, op, dy, x, (rate, seed), true, dx.into())
}

fn record<T: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    x: &Tensor<T>,
    at: &Tensor<T>,
    (rate, seed): (f32, u64),
    relu: bool,
    y: Out<'_, T>,
) -> Result<()> {
    let (threshold, factor) = (threshold(rate)?, factor(rate));
    y.check_shape(op, x.shape())?;
    let params = Params {
        length: x.len() as u32,
        seed_low: seed as u32,
        seed_high: (seed >> 32) as u32,
        threshold,
        factor,
        relu: relu.into(),
        add: y.adds().into(),
    };
    encoder.dispatch(&DROPOUT, &params, &[x, at, y.tensor()], [x.len().div_ceil(4), 1, 1])
}

/// Below which a random word drops its element.
fn threshold(rate: f32) -> Result<u32> {
    if !(0.0..1.0).contains(&rate) {
        return Err(Error::Invalid {
            op: "dropout",
            what: format!("a rate of {rate}: it is from 0 to below 1"),
        });
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
    kept(x.iter().copied(), rate, seed)
}

/// The CPU twin of [`relu_dropout`]: the same bits.
///
/// # Errors
/// As [`dropout`].
pub fn relu_dropout_cpu(x: &[f32], rate: f32, seed: u64) -> Result<Vec<f32>> {
    kept(x.iter().map(|&x| if x > 0.0 { x } else { 0.0 }), rate, seed)
}

/// The CPU twin of [`relu_dropout_backward`]: the same bits.
///
/// # Errors
/// As [`dropout`]; [`Error::Length`] if `dy` is not as long as `x`.
pub fn relu_dropout_backward_cpu(x: &[f32], dy: &[f32], rate: f32, seed: u64) -> Result<Vec<f32>> {
    if dy.len() != x.len() {
        return Err(Error::Length { shape: [x.len()].into(), found: dy.len() });
    }
    kept(x.iter().zip(dy).map(|(x, dy)| if *x > 0.0 { *dy } else { 0.0 }), rate, seed)
}

fn kept(x: impl Iterator<Item = f32>, rate: f32, seed: u64) -> Result<Vec<f32>> {
    let (threshold, factor) = (threshold(rate)?, factor(rate));
    Ok(x.enumerate()
        .map(|(i, x)| if word(seed, i) >= threshold { factor * x } else { 0.0 })
        .collect())
}
