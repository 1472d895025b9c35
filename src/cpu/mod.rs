//! Kernels for processors: what the CPU twins in `ops/` compute, bit by bit, at the speed of vector
//! instructions. A twin says what is right; a kernel here is tested against it with every
//! instruction set that the processor has.

pub(crate) mod attention;
pub(crate) mod dense;
mod halves;
pub(crate) mod isa;
mod prefetch;
pub(crate) mod ternary;
pub(crate) mod ternary_float;
