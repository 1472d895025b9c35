//! The cases: for each op, the smallest shapes that need more than one workgroup or end within one,
//! and what the CPU reference makes of the same data.

mod bitnet;
mod linalg;
mod measure;
mod model;
mod optimizer;
mod recurrent;
mod tensor;
mod transformer;

use super::trial::Trial;
use anyhow::Result;

/// An op on seeded data, and its reference.
#[derive(Clone, Copy)]
pub struct Case {
    /// Family and op.
    pub name: &'static str,
    /// Whether there are `f16` tensors, which not every device has.
    pub f16: bool,
    /// Records the op and says what is expected of it.
    pub run: fn(&mut Trial) -> Result<()>,
}

const fn case(name: &'static str, run: fn(&mut Trial) -> Result<()>) -> Case {
    Case { name, f16: false, run }
}

/// A case with tensors of `f16`.
const fn half(name: &'static str, run: fn(&mut Trial) -> Result<()>) -> Case {
    Case { name, f16: true, run }
}

/// Bound of a sum of a few hundred numbers, and of functions that devices compute to a few units in
/// the last place.
const SUM: f64 = 1e-5;

/// All cases.
pub fn all() -> Vec<Case> {
    [
        bitnet::CASES,
        tensor::CASES,
        transformer::CASES,
        recurrent::CASES,
        optimizer::CASES,
        linalg::CASES,
        measure::CASES,
        model::CASES,
    ]
    .concat()
}
