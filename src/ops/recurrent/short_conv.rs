//! Convolution over time, each channel by itself, of a few tokens, and SiLU.

use super::shape::{expect_columns, expect_shape};
use crate::{
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        recording::Extent,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Type::*, read, read_write},
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

params! { struct Params { count: u32, run: u32, sequences: u32, channels: u32, stride: u32, taps: u32, pieces: u32, piece: u32, keeps: u32 } }

/// Tokens of a run that a thread computes. Longer runs are pieces of this many, and their states are
/// written by a dispatch of its own. H200: "Hybrids and mixtures of experts, faster".
const PIECE: usize = 16;

static SHORT_CONV: Kernel = Kernel::trusted(
    "short_conv",
    Params::FIELDS,
    &[
        read("runs", U32),
        read("x", F32),
        read("weights", F32),
        read_write("state", F32),
        read_write("y", F32),
    ],
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/exp",
            "shared/sigmoid",
            "tensor/silu",
            "recurrent/short_conv"
        ]),
        Source::msl(msl![
            "shared/prelude",
            "shared/exp",
            "shared/sigmoid",
            "tensor/silu",
            "recurrent/short_conv"
        ]),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&SHORT_CONV];

const OP: &str = "short_conv";

/// A short convolution of some sequences: what [`short_conv`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct ShortConv<'a> {
    x: &'a Tensor<f32>,
    positions: CachePositions<'a>,
    weights: &'a Tensor<f32>,
    state: &'a Tensor<f32>,
}

/// silu(Σⱼ weights[c, j] · x[t - kernel + 1 + j, c]), `[tokens, channels]`, of the first columns of
/// `x` `[tokens, channels or more]` with `weights` `[channels, kernel]`. `state`
/// `[sequences, kernel - 1, channels]` has the tokens before, and after it the last ones; that of a
/// sequence without tokens is taken for zeros. Results do not depend on how a sequence is cut into
/// runs.
pub fn short_conv<'a>(
    x: &'a Tensor<f32>,
    positions: CachePositions<'a>,
    weights: &'a Tensor<f32>,
    state: &'a Tensor<f32>,
) -> ShortConv<'a> {
    ShortConv { x, positions, weights, state }
}

forward!(impl['a] ShortConv<'a> => overwrite f32);

impl ShortConv<'_> {
    fn shape(&self) -> Result<Shape> {
        Ok([self.x.shape().as_matrix().0, self.weights.shape().as_matrix().0].into())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let Self { x, positions, weights, state } = self;
        let tokens = x.shape().as_matrix().0;
        let runs = positions.check(OP, tokens)?;
        let (channels, taps) = weights.shape().as_matrix();
        if taps == 0 {
            let what = "a convolution of no tokens".into();
            return Err(Error::Invalid { op: OP, what });
        }
        let stride = expect_columns(OP, "x", x, (tokens, channels))?;
        let sequences = state.shape().dims().first().copied().unwrap_or(0);
        expect_shape(OP, "the state", state, &[sequences.max(runs), taps - 1, channels])?;
        y.check(OP, tokens, channels)?;
        let run = positions.tokens;
        let bindings: [&dyn Bind; 5] = [positions.sequences, x, weights, state, y.tensor()];
        // Pieces, tokens of each, and whether the state is written.
        let record = |encoder: &mut Encoder, (pieces, piece, keeps): (usize, usize, bool)| {
            let count = runs * pieces * channels;
            let params = Params {
                count: count as u32,
                run: run as u32,
                sequences: sequences as u32,
                channels: channels as u32,
                stride: stride as u32,
                taps: taps as u32,
                pieces: pieces as u32,
                piece: piece as u32,
                keeps: keeps.into(),
            };
            let extent = Extent::products([count, 1, 1], (piece * taps).max(1));
            encoder.dispatch(&SHORT_CONV, &params, &bindings, extent)
        };
        if run <= PIECE {
            return record(encoder, (1, run, true));
        }
        encoder.transaction(|encoder| {
            record(encoder, (run.div_ceil(PIECE), PIECE, false))?;
            record(encoder, (1, 0, true))
        })
    }
}

pub(crate) mod host {
    use super::super::expect::expect;
    use crate::{error::Result, ops::exp::exp};

    /// CPU reference of [`short_conv`](fn@crate::recurrent::short_conv): returns silu(Σⱼ w[c, j] · x[t - kernel + 1 + j, c]), `[tokens, channels]`, of the first
    /// columns of `x` `[tokens, stride]` with `weights` `[channels, kernel]`. `state`
    /// `[kernel - 1, channels]` has the tokens before, and after it the last ones.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for another number of numbers.
    pub fn short_conv(
        x: &[f32],
        stride: usize,
        weights: &[f32],
        kernel: usize,
        state: &mut [f32],
    ) -> Result<Vec<f32>> {
        let (op, kernel) = ("short_conv", kernel.max(1));
        let channels = weights.len() / kernel;
        let tokens = x.len() / stride.max(1);
        expect(op, "weights", weights.len(), channels * kernel)?;
        expect(op, "an input", x.len(), tokens * stride)?;
        expect(op, "a state", state.len(), (kernel - 1) * channels)?;
        expect(op, "rows", stride.max(channels), stride)?;
        let mut seen = state.to_vec();
        x.chunks_exact(stride.max(1)).for_each(|row| seen.extend(&row[..channels]));
        let mut y = Vec::with_capacity(tokens * channels);
        for token in 0..tokens {
            let window = &seen[token * channels..][..kernel * channels];
            y.extend((0..channels).map(|channel| {
                let own = &weights[channel * kernel..][..kernel];
                let sum = own
                    .iter()
                    .enumerate()
                    .fold(0f32, |sum, (j, weight)| sum + weight * window[j * channels + channel]);
                sum / (1.0 + exp(-sum))
            }));
        }
        state.copy_from_slice(&seen[tokens * channels..]);
        Ok(y)
    }
}
