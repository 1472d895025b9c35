//! Forbids tokens by a mask of bits.

use super::cache::CachePositions;
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    params, wgsl,
};

params! { struct Params { length: u32, vocab: u32, sequences: u32, words: u32 } }

static MASK_LOGITS: Kernel = Kernel::trusted(
    "mask_logits",
    Params::FIELDS,
    &[read("runs", U32), read("masks", U32), read_write("logits", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "transformer/mask_logits"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&MASK_LOGITS];

const OP: &str = "mask_logits";

/// Masks of allowed tokens, of sequences: for the choice of tokens that a grammar allows.
#[derive(Clone, Copy, Debug)]
pub struct LogitMasks<'a> {
    masks: &'a Tensor<u32>,
}

impl<'a> LogitMasks<'a> {
    /// The `masks` `[sequences, words]`: bit `token % 32` of word `token / 32` allows a token.
    /// Tokens beyond the last word are not allowed.
    pub fn new(masks: &'a Tensor<u32>) -> Self {
        Self { masks }
    }

    /// Records that the logits of forbidden tokens become -∞, in `logits` `[rows, vocab]`, those
    /// after the last of the new tokens of each sequence, in place.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is not one row for each sequence; [`Error::Shape`] for masks
    /// that are no matrix, or of no sequence.
    pub fn forward(
        self,
        encoder: &mut Encoder,
        logits: &Tensor<f32>,
        positions: CachePositions<'_>,
    ) -> Result<()> {
        let (rows, vocab) = logits.shape().as_matrix();
        let run = positions.tokens;
        if positions.check(OP, rows.saturating_mul(run))? != rows {
            let what = format!("{rows} rows; one comes after the {run} tokens of a sequence");
            return Err(Error::Invalid { op: OP, what });
        }
        let &[sequences, words] = self.masks.shape().dims() else {
            return Err(self.wrong("[sequences, words]"));
        };
        if sequences == 0 && rows > 0 {
            return Err(self.wrong("[1 or more, words]"));
        }
        let params = Params {
            length: logits.len() as u32,
            vocab: vocab as u32,
            sequences: sequences as u32,
            words: words as u32,
        };
        encoder.dispatch(
            &MASK_LOGITS,
            &params,
            &[positions.sequences, self.masks, logits],
            [logits.len(), 1, 1],
        )
    }

    fn wrong(self, expected: &str) -> Error {
        let found = self.masks.shape();
        Error::Shape { op: OP, what: "the masks", expected: expected.into(), found }
    }
}

pub(crate) mod host {
    /// CPU reference of [`LogitMasks::forward`](super::LogitMasks::forward), for one sequence:
    /// bit-identical.
    pub fn mask_logits(logits: &mut [f32], mask: &[u32]) {
        let words = mask.iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(32).zip(words) {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}
