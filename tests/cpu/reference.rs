//! The CPU references, which the tests of `ops` compare with, against definitions and the choices of
//! transformers.

mod gradients;
mod rounding;
mod sampling;
mod weights;
