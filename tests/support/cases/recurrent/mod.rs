//! Recurrent layers: gated DeltaNet, and the gate of the attention beside it.

mod gated_delta;
mod gated_norm;
mod output_gate;
mod short_conv;

use super::{By::*, Family};
use crate::{Data, Near, Recorder, U};
use bitnet_wgpu::{Result, Tensor};

pub const OPS: Family = &[
    ("recurrent::gated_delta", KernelsAndReference, gated_delta::cases),
    ("recurrent::gated_norm", KernelsAndReference, gated_norm::cases),
    ("recurrent::output_gate", KernelsAndReference, output_gate::cases),
    ("recurrent::short_conv", KernelsAndReference, short_conv::cases),
];

/// How many sequences have states.
const SEQUENCES: usize = 3;

/// Some of them with the number of tokens before, which each get as many tokens: in one run, and in
/// chunks.
#[derive(Clone, Copy)]
struct Runs {
    of: &'static [[u32; 2]],
    chunks: &'static [usize],
}

impl Runs {
    /// Tokens of each.
    fn run(&self) -> usize {
        self.chunks.iter().sum()
    }

    /// Tokens of all.
    fn tokens(&self) -> usize {
        self.run() * self.of.len()
    }

    /// Tokens before each chunk, and of it.
    fn ranges(&self) -> Vec<(usize, usize)> {
        let range = |from: &mut usize, &len: &usize| {
            *from += len;
            Some((*from - len, len))
        };
        self.chunks.iter().scan(0, range).collect()
    }

    /// Some tokens of each run, of rows of all.
    fn rows<T: Copy>(&self, rows: &[T], (from, len): (usize, usize)) -> Vec<T> {
        let width = rows.len() / self.tokens();
        let own = rows.chunks_exact(self.run() * width);
        own.flat_map(|own| &own[from * width..][..len * width]).copied().collect()
    }

    /// The table of runs after some tokens.
    fn table(&self, r: &mut Recorder, from: usize) -> Result<Tensor<u32>> {
        let own: Vec<u32> = self.of.iter().flat_map(|run| [run[0], run[1] + from as u32]).collect();
        r.upload(&own, [self.of.len(), 2])
    }

    /// Checks that chunks gave the bits of one run: `got` has outputs and states of that, then the
    /// outputs of each chunk, and the states after them.
    fn check_chunks(&self, got: &[Data]) -> std::result::Result<(), String> {
        let [whole, state, chunks @ .., last] = got else { return Ok(()) };
        for (range, chunk) in self.ranges().into_iter().zip(chunks) {
            let expected = Data::F32(self.rows(&whole.to_f32(), range));
            if !chunk.has_bits_of(&expected) {
                return Err(format!("the chunk at {range:?} differs from a run"));
            }
        }
        match last.has_bits_of(state) {
            true => Ok(()),
            false => Err("the state after chunks differs from that of a run".into()),
        }
    }
}

/// A sum of products, in any order.
fn dot(pairs: impl Iterator<Item = (Near, Near)>) -> Near {
    let (mut exact, mut error, mut magnitude, mut terms) = (0.0, 0.0, 0.0, 4.0);
    for (a, b) in pairs {
        exact += a.exact * b.exact;
        magnitude += (a.exact * b.exact).abs();
        error += a.error * b.exact.abs() + b.error * a.exact.abs();
        terms += 1.0;
    }
    Near { exact, error: error + U * terms * magnitude }
}

/// 1 / sqrt(Σx² · by + eps), where the sum is off by as many units of U as it has terms, and two
/// sums, quotient and root by twenty.
fn inverse_length(x: &[f32], by: f64, eps: f32) -> Near {
    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    super::tensor::unary::near(
        1.0 / (squares * by + f64::from(eps)).sqrt(),
        20.0 + x.len() as f64 / 2.0,
    )
}
