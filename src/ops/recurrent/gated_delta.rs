//! The gated delta rule (Yang et al. 2024, arXiv:2412.06464), token by token.

use super::shape::{DeltaRates, DeltaShape, expect_shape};
use crate::{
    error::Result,
    gpu::{
        encoder::Encoder,
        out::Out,
        recording::{Extent, product},
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::{forward::forward, transformer::CachePositions},
    params,
    shape::Shape,
    wgsl,
};

params! {
    struct Params {
        groups: u32, run: u32, sequences: u32, key_heads: u32, value_heads: u32, key_dim: u32, value_dim: u32, tiled: u32, scale: f32,
    }
}

/// Columns of a state that a workgroup holds.
const COLUMNS: u32 = 32;
/// Threads that share a column.
const PARTS: u32 = 8;
const THREADS: u32 = COLUMNS * PARTS;

const fn by_columns(
    source: Source,
    constants: &'static [(&'static str, u32)],
    bytes: u32,
) -> Source {
    source
        .workgroup_size([THREADS, 1, 1])
        .tile([1, 1, 1])
        .constants(constants)
        .workgroup_bytes(bytes)
}

/// For keys of up to this width, of which a thread holds a part of a column.
macro_rules! of_width {
    ($kernel:ident, $name:literal, $width:literal) => {
        static $kernel: Kernel = Kernel::trusted(
            $name,
            Params::FIELDS,
            BINDINGS,
            &[
                by_columns(
                    Source::wgsl(wgsl![
                        "shared/ids",
                        "shared/flat",
                        "shared/exp",
                        "shared/sigmoid",
                        "tensor/softplus",
                        "recurrent/gated_delta"
                    ]),
                    &[("COLUMNS", COLUMNS), ("HELD", $width / PARTS), ("PARTS", PARTS)],
                    16 * THREADS + 8 * PARTS + 32 * PARTS * ($width / PARTS / 2 + 1),
                ),
                by_columns(
                    Source::msl(msl![
                        "shared/prelude",
                        "shared/exp",
                        "shared/sigmoid",
                        "tensor/softplus",
                        "recurrent/gated_delta"
                    ]),
                    &[
                        ("COLUMNS", COLUMNS),
                        ("HELD", $width / PARTS),
                        ("PARTS", PARTS),
                        ("PITCH", $width / PARTS / 2 + 1),
                    ],
                    24 * THREADS + 32 * PARTS * ($width / PARTS / 2 + 1),
                ),
            ],
        )
        .entry("gated_delta")
        .flat();
    };
}

const BINDINGS: &[Binding] = &[
    read("runs", U32),
    read("mixed", F32),
    read("alpha", F32),
    read("beta", F32),
    read("dt_bias", F32),
    read("decay", F32),
    read_write("state", F32),
    read_write("y", F32),
];

of_width!(OF_64, "gated_delta_64", 64);
of_width!(OF_128, "gated_delta_128", 128);
of_width!(OF_256, "gated_delta_256", 256);

pub(super) const KERNELS: &[&Kernel] = &[&OF_64, &OF_128, &OF_256];

const OP: &str = "gated_delta";

/// A gated delta rule of some sequences: what [`gated_delta`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct GatedDelta<'a> {
    shape: DeltaShape,
    mixed: &'a Tensor<f32>,
    rates: DeltaRates<'a, Tensor<f32>>,
    positions: CachePositions<'a>,
    state: &'a Tensor<f32>,
}

/// Appends tokens `mixed` `[tokens, features]`, of queries, keys and values, to states
/// `[sequences, value_heads, key_dim, value_dim]`, in place and one after another. The result is
/// what each token reads, `[tokens, values]`:
/// `S = g·S + k (β (v - (g·S)ᵀ k))ᵀ` and `o = Sᵀ q / √key_dim`, where q and k have length one,
/// `β = σ(beta)` and `g = exp(decay · softplus(alpha + dt_bias))`.
///
/// The state of a sequence without tokens is taken for zeros. Results do not depend on how a
/// sequence is cut into runs.
pub fn gated_delta<'a>(
    shape: DeltaShape,
    mixed: &'a Tensor<f32>,
    rates: DeltaRates<'a, Tensor<f32>>,
    positions: CachePositions<'a>,
    state: &'a Tensor<f32>,
) -> GatedDelta<'a> {
    GatedDelta { shape, mixed, rates, positions, state }
}

forward!(impl['a] GatedDelta<'a> => overwrite f32);

impl GatedDelta<'_> {
    fn shape(&self) -> Result<Shape> {
        Ok([self.mixed.shape().as_matrix().0, self.shape.values()].into())
    }

    /// Refuses tensors that do not fit the heads. Returns the numbers of runs and of sequences.
    fn check(&self) -> Result<(usize, usize)> {
        let Self { shape, mixed, rates, positions, state } = self;
        shape.check(OP)?;
        let (tokens, heads) = (mixed.shape().as_matrix().0, shape.value_heads);
        expect_shape(OP, "mixed", mixed, &[tokens, shape.mixed()])?;
        expect_shape(OP, "alpha", rates.alpha, &[tokens, heads])?;
        expect_shape(OP, "beta", rates.beta, &[tokens, heads])?;
        expect_shape(OP, "dt_bias", rates.dt_bias, &[heads])?;
        expect_shape(OP, "decay", rates.decay, &[heads])?;
        let runs = positions.check(OP, tokens)?;
        let sequences = state.shape().dims().first().copied().unwrap_or(0).max(runs);
        let dims = [sequences, heads, shape.key_dim, shape.value_dim];
        expect_shape(OP, "the state", state, &dims)?;
        Ok((runs, sequences))
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let (runs, sequences) = self.check()?;
        let Self { shape, mixed, rates, positions, state } = self;
        let DeltaRates { alpha, beta, dt_bias, decay } = rates;
        y.check(OP, mixed.shape().as_matrix().0, shape.values())?;
        let groups = runs * shape.value_heads * shape.value_dim.div_ceil(COLUMNS as usize);
        let params = Params {
            groups: groups as u32,
            run: positions.tokens as u32,
            sequences: sequences as u32,
            key_heads: shape.key_heads as u32,
            value_heads: shape.value_heads as u32,
            key_dim: shape.key_dim as u32,
            value_dim: shape.value_dim as u32,
            tiled: shape.tiled.into(),
            scale: 1.0 / (shape.key_dim as f32).sqrt(),
        };
        let bindings: [&dyn Bind; 8] =
            [positions.sequences, mixed, alpha, beta, dt_bias, decay, state, y.tensor()];
        // Of every token, the state is decayed, read, changed and read again.
        let work = product(&[mixed.shape().as_matrix().0, shape.state(), 4]);
        let kernel = match shape.key_dim {
            0..=64 => &OF_64,
            65..=128 => &OF_128,
            _ => &OF_256,
        };
        encoder.dispatch(kernel, &params, &bindings, Extent::with_work([groups, 1, 1], work))
    }
}

pub(crate) mod host {
    use super::{super::expect::expect, DeltaRates, DeltaShape};
    use crate::{
        error::Result,
        ops::exp::{exp, exp_f64},
    };
    use rayon::prelude::*;

    /// Added to the sum of squares of a query or a key, of which the length becomes one.
    const EPS: f32 = 1e-6;

    /// CPU reference of [`gated_delta`](fn@crate::recurrent::gated_delta): appends tokens `[tokens, mixed]`, of queries, keys and values, to a state
    /// `[value_heads, key_dim, value_dim]`, one after another, and returns what each reads,
    /// `[tokens, value_heads, value_dim]`:
    /// `S = g·S + k (β (v - (g·S)ᵀ k))ᵀ` and `o = Sᵀ q / √key_dim`, where q and k have length one,
    /// `β = σ(beta)` and `g = exp(decay · softplus(alpha + dt_bias))`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for another number of numbers.
    pub fn gated_delta(
        shape: DeltaShape,
        mixed: &[f32],
        rates: &DeltaRates<'_, [f32]>,
        state: &mut [f32],
    ) -> Result<Vec<f32>> {
        let (op, heads, width) = ("gated_delta", shape.value_heads, shape.value_dim);
        let tokens = mixed.len() / shape.mixed().max(1);
        expect(op, "an input", mixed.len(), tokens * shape.mixed())?;
        expect(op, "a state", state.len(), shape.state())?;
        for (what, found, expected) in [
            ("alpha", rates.alpha, tokens * heads),
            ("beta", rates.beta, tokens * heads),
            ("dt_bias", rates.dt_bias, heads),
            ("decay", rates.decay, heads),
        ] {
            expect(op, what, found.len(), expected)?;
        }
        let by_head: Vec<Vec<f32>> = state
            .par_chunks_exact_mut(shape.key_dim * width)
            .enumerate()
            .map(|(head, state)| of_head(shape, head, mixed, rates, state))
            .collect();
        let mut y = vec![0f32; tokens * heads * width];
        for (head, own) in by_head.iter().enumerate() {
            for (token, own) in own.chunks_exact(width).enumerate() {
                y[(token * heads + head) * width..][..width].copy_from_slice(own);
            }
        }
        Ok(y)
    }

    /// What one value head reads of all tokens, `[tokens, value_dim]`.
    fn of_head(
        shape: DeltaShape,
        head: usize,
        mixed: &[f32],
        rates: &DeltaRates<'_, [f32]>,
        state: &mut [f32],
    ) -> Vec<f32> {
        let (size, width, heads) = (shape.key_dim, shape.value_dim, shape.value_heads);
        let (keys, scale) = (shape.key_heads * size, 1.0 / (size as f32).sqrt());
        let mut y = Vec::with_capacity(mixed.len() / shape.mixed().max(1) * width);
        for (token, row) in mixed.chunks_exact(shape.mixed()).enumerate() {
            let at = shape.key_head(head) * size;
            let query = unit(&row[at..][..size], scale);
            let key = unit(&row[keys + at..][..size], 1.0);
            let value = &row[2 * keys + head * width..][..width];
            let alpha = rates.alpha[token * heads + head] + rates.dt_bias[head];
            let decay = exp(rates.decay[head] * softplus(alpha));
            let beta = 1.0 / (1.0 + exp(-rates.beta[token * heads + head]));
            let mut delta = vec![0f32; width];
            for (state, key) in state.chunks_exact_mut(width).zip(&key) {
                for (state, delta) in state.iter_mut().zip(&mut delta) {
                    *state *= decay;
                    *delta += *state * key;
                }
            }
            delta.iter_mut().zip(value).for_each(|(delta, value)| *delta = (value - *delta) * beta);
            let mut read = vec![0f32; width];
            for ((state, key), query) in state.chunks_exact_mut(width).zip(&key).zip(&query) {
                for ((state, delta), read) in state.iter_mut().zip(&delta).zip(&mut read) {
                    *state += key * delta;
                    *read += *state * query;
                }
            }
            y.extend(read);
        }
        y
    }

    /// A vector of length `length`.
    fn unit(x: &[f32], length: f32) -> Vec<f32> {
        let squares = x.iter().fold(0f32, |sum, x| sum + x * x);
        let factor = 1.0 / (squares + EPS).sqrt() * length;
        x.iter().map(|x| x * factor).collect()
    }

    /// ln(1 + e^x).
    fn softplus(x: f32) -> f32 {
        if x > 20.0 { x } else { exp_f64(f64::from(x)).ln_1p() as f32 }
    }
}
