//! Factorizations and solutions of dense matrices in `f32`, for batches: of a tensor `[.., m, n]`
//! the last two dimensions are a matrix, those before them the batch. Matrices of up to a thousand
//! rows or so are what it is made for.
//!
//! | to | see |
//! | --- | --- |
//! | solve A·x = b, A square | [`solve`]; where A is symmetric positive definite, [`cholesky`] and [`triangular_solve`] twice, which is faster |
//! | find the x that makes ‖A·x - b‖ least | [`least_squares`] |
//! | have an orthonormal basis of the columns | [`qr`] |
//! | have singular values and vectors | [`svd`] |
//!
//! With the feature `train`, each has a gradient: `Solve::backward`, `Cholesky::backward` and so on.
//!
//! A matrix may have no such factors. Its status says so when the work has run: see [`Outcome`].
//! Sums are added in a fixed order, so results are reproducible bit for bit on one device; devices
//! differ from each other by rounding. Numbers below 2^-126 may be taken for 0.

mod householder;
mod matrices;

pub(crate) mod cholesky;
#[cfg(feature = "train")]
pub(crate) mod gradients;
pub(crate) mod least_squares;
pub(crate) mod outcome;
pub(crate) mod qr;
pub(crate) mod solve;
pub(crate) mod svd;
pub(crate) mod triangular_solve;

family!(
    outcome,
    cholesky,
    triangular_solve,
    qr,
    solve,
    least_squares,
    svd,
    #[cfg(feature = "train")]
    gradients;
    reference: cholesky, least_squares, qr, solve, svd, triangular_solve,
        #[cfg(feature = "train")] gradients
);
