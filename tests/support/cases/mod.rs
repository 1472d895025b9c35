//! The cases of every op: a file for each file of `src/ops`.

mod bitnet;
mod measure;
mod tensor;
mod transformer;

use crate::Case;
use std::sync::{LazyLock, OnceLock};

/// The ops of a family, by the names that trials have.
type Family = &'static [(&'static str, fn() -> Vec<Case>)];

/// An op and its cases.
pub struct Op {
    /// Its family and name.
    pub name: &'static str,
    make: fn() -> Vec<Case>,
    made: OnceLock<Vec<Case>>,
}

impl Op {
    /// Its cases, made when they are first asked for and kept.
    pub fn cases(&self) -> &[Case] {
        self.made.get_or_init(self.make)
    }
}

/// Every op of the crate.
pub fn ops() -> &'static [Op] {
    static OPS: LazyLock<Vec<Op>> = LazyLock::new(|| {
        let all = [bitnet::OPS, tensor::OPS, transformer::OPS, measure::OPS].concat();
        all.into_iter().map(|(name, make)| Op { name, make, made: OnceLock::new() }).collect()
    });
    &OPS
}
