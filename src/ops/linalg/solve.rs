//! solve: A·x = b for square A, by Householder's reflections. They take twice the work of
//! elimination, and no pivots: their backward error is small whatever A is (Higham, Accuracy and
//! Stability of Numerical Algorithms, 2nd edition, theorem 19.5).

use crate::{
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::linalg::{
        least_squares::{by_reflections, by_reflections_cpu},
        matrices::Matrices,
        outcome::{Fault, Outcome},
    },
};

pub(super) const KERNELS: &[&Kernel] = &[];

/// What [`solve`] returns.
#[derive(Clone, Copy, Debug)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Solve<'a> {
    pub(super) a: &'a Tensor<f32>,
    pub(super) b: &'a Tensor<f32>,
}

/// x `[.., n, r]` with A·x = b for r right-hand sides b `[.., n, r]` and A `[.., n, n]`.
/// [`Outcome`] has an example.
pub fn solve<'a>(a: &'a Tensor<f32>, b: &'a Tensor<f32>) -> Solve<'a> {
    Solve { a, b }
}

impl Solve<'_> {
    /// Records the op.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if A is not square, or b has other rows or leading
    /// dimensions. The outcome: [`Error::Singular`](crate::Error::Singular) at the first column that
    /// depends on those before it, up to rounding (a change of it by √n·2^-20 of its norm would do);
    /// [`Error::NotFinite`](crate::Error::NotFinite), also where x overflows; x is NaN then.
    pub fn forward(self, encoder: &mut Encoder) -> Result<Outcome<Tensor<f32>>> {
        let Self { a, b } = self;
        let square = Matrices::square("solve", "A", a)?;
        by_reflections(encoder, "solve", Fault::Singular, square, b)
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`solve`](super::solve()) for one matrix `n × n` and right-hand sides `b` `[n, r]`, in `f64` and rounded at
    /// the end.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) if `a` is not `n × n`, or `b` not n rows; else as
    /// [`solve`].
    pub fn solve(a: &[f32], b: &[f32], n: usize) -> Result<Vec<f32>> {
        by_reflections_cpu("solve", Fault::Singular, a, b, [n, n])
    }
}
