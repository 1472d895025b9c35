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
    ops::{
        forward::{backward, forward},
        frames::Operand,
        philox::word,
    },
    params,
    shape::Shape,
    wgsl,
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

/// Dropout of elements, after a relu or not: what [`dropout`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Dropout<'a, T> {
    x: &'a Tensor<T>,
    rate: f32,
    seed: u64,
    relu: bool,
}

/// x / (1 - rate) for elements that are kept, 0 for the share `rate`, 0 to below 1, that is not.
/// Which ones follows from `seed` and the place of the element alone: it is the same on every
/// backend, and for the same seed every time. The result is another tensor than `x`.
pub fn dropout<T: Float>(x: &Tensor<T>, rate: f32, seed: u64) -> Dropout<'_, T> {
    Dropout { x, rate, seed, relu: false }
}

forward!(impl['a, T: Float] Dropout<'a, T> => T);
backward!(impl['a, T: Float] Dropout<'a, T> => T; dy: T);

impl<T: Float> Dropout<'_, T> {
    /// Takes max(x, 0) in place of x, in the same dispatch.
    pub fn relu(self) -> Self {
        Self { relu: true, ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(self.x.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        self.dispatch(encoder, self.x, y)
    }

    fn gradient(self, encoder: &mut Encoder, dy: &Tensor<T>, dx: Out<'_, T>) -> Result<()> {
        Operand::same("dropout", "dy", dy, self.x.shape())?;
        self.dispatch(encoder, dy, dx)
    }

    /// Records dropout of `values`, the relu being that of `x`.
    fn dispatch(self, encoder: &mut Encoder, values: &Tensor<T>, y: Out<'_, T>) -> Result<()> {
        let Self { x, rate, seed, relu } = self;
        let (threshold, factor) = (threshold(rate)?, factor(rate));
        y.check_shape("dropout", x.shape())?;
        let params = Params {
            length: x.len() as u32,
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            threshold,
            factor,
            relu: relu.into(),
            add: y.adds().into(),
        };
        let extent = [x.len().div_ceil(4), 1, 1];
        encoder.dispatch(&DROPOUT, &params, &[values, x, y.tensor()], extent)
    }
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

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`dropout`](fn@crate::tensor::dropout), bit-identical. For dropout after a
    /// relu, `x` is what [`relu`](fn@crate::reference::relu) leaves.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless 0 <= rate < 1.
    pub fn dropout(x: &[f32], rate: f32, seed: u64) -> Result<Vec<f32>> {
        let (threshold, factor) = (threshold(rate)?, factor(rate));
        let kept = |(i, x)| if word(seed, i) >= threshold { factor * x } else { 0.0 };
        Ok(x.iter().enumerate().map(kept).collect())
    }
}
