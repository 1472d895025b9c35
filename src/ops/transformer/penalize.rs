//! Logit biases and penalties for tokens that a sequence has had.
//! Repetition: Keskar et al. 2019, "CTRL", arXiv 1909.05858.

use super::cache::CachePositions;
use crate::{
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    params, wgsl,
};

params! { struct Params { length: u32, vocab: u32, sequences: u32, biases: u32, run: u32, zero: u32 } }

static PENALIZE: Kernel = Kernel::trusted(
    "penalize",
    Params::FIELDS,
    &[
        read("tokens", U32),
        read("runs", U32),
        read("penalties", F32),
        read("biases", F32),
        read_write("counts", U32),
        read_write("logits", F32),
    ],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "transformer/penalize"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&PENALIZE];

const OP: &str = "penalize";

/// Penalties of one sequence: how [`Penalizer`] changes the logits of its earlier tokens. They begin
/// with [`Penalties::NONE`]: `Penalties::NONE.presence(0.5)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
}

impl Penalties {
    /// Penalties that change nothing.
    pub const NONE: Self = Self { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    /// In the counts of [`Penalizer`]: the sequence has the token, though it was not generated.
    pub const SEEN: u32 = 1 << 31;

    /// Sets what divides logits where they are positive (they are multiplied with the rounded
    /// 1 / repetition), and multiplies the others; 1 changes nothing.
    #[must_use]
    pub fn repetition(self, repetition: f32) -> Self {
        Self { repetition, ..self }
    }

    /// Sets what is subtracted for tokens that were generated; 0 changes nothing.
    #[must_use]
    pub fn presence(self, presence: f32) -> Self {
        Self { presence, ..self }
    }

    /// Sets what is subtracted for each time that a token was generated; 0 changes nothing.
    #[must_use]
    pub fn frequency(self, frequency: f32) -> Self {
        Self { frequency, ..self }
    }

    /// Checks that the numbers are in range.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |what| Err(Error::Invalid { op: OP, what });
        if !(self.repetition.is_finite() && self.repetition > 0.0) {
            return invalid(format!(
                "repetition_penalty is {}; it must be finite and positive",
                self.repetition
            ));
        }
        for (name, penalty) in
            [("presence_penalty", self.presence), ("frequency_penalty", self.frequency)]
        {
            if !penalty.is_finite() {
                return invalid(format!("{name} is {penalty}; it must be finite"));
            }
        }
        Ok(())
    }

    /// 1 / repetition: finite, though a repetition may be subnormal.
    fn inverse(&self) -> f32 {
        self.repetition.recip().min(f32::MAX)
    }

    /// Uploads the penalties of sequences, as [`Penalizer`] takes them, `[sequences, 4]`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for penalties out of range; what the device reports.
    pub fn upload(context: &Context, sequences: &[Self]) -> Result<Tensor<f32>> {
        context.upload(&Self::words(sequences)?, [sequences.len(), 4])
    }

    /// The numbers of [`Penalties::upload`].
    pub(crate) fn words(sequences: &[Self]) -> Result<Vec<f32>> {
        sequences.iter().try_for_each(Self::check)?;
        Ok(sequences
            .iter()
            .flat_map(|own| [own.repetition, own.inverse(), own.presence, own.frequency])
            .collect())
    }

    /// The logit of a token that was generated this many times; [`Penalties::SEEN`] as in
    /// [`Penalizer`].
    pub(crate) fn apply(&self, logit: f32, count: u32) -> f32 {
        if count == 0 {
            return logit;
        }
        let logit = logit * if logit > 0.0 { self.inverse() } else { self.repetition };
        match count & !Self::SEEN {
            0 => logit,
            generated => logit - (self.presence + self.frequency * generated as f32),
        }
    }
}

/// Logit biases and penalties of sequences, with the counts of their tokens.
#[derive(Clone, Copy, Debug)]
pub struct Penalizer<'a> {
    penalties: &'a Tensor<f32>,
    biases: &'a Tensor<f32>,
    counts: &'a Tensor<u32>,
}

impl<'a> Penalizer<'a> {
    /// The `penalties` of [`Penalties::upload`], `biases` `[sequences, vocab]`, or `[1, vocab]` for
    /// all, and `counts` `[sequences, vocab]`: how often each token was generated, plus
    /// [`Penalties::SEEN`] for tokens of the prompt.
    pub fn new(
        penalties: &'a Tensor<f32>,
        biases: &'a Tensor<f32>,
        counts: &'a Tensor<u32>,
    ) -> Self {
        Self { penalties, biases, counts }
    }

    /// Records the change of `logits` `[rows, vocab]`, those after the last of the new tokens of each
    /// sequence, in place. Before, the counts of these last ones of `tokens` are raised, so that a
    /// recording that is submitted again and again keeps its counts. Biases are added where they
    /// are not 0; then come the penalties. Each sum and product is rounded, as on the CPU.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is not one row for each sequence; [`Error::Shape`] for tensors
    /// that do not fit.
    pub fn forward(
        self,
        encoder: &mut Encoder,
        logits: &Tensor<f32>,
        tokens: &Tensor<u32>,
        positions: CachePositions<'_>,
    ) -> Result<()> {
        let Self { penalties, biases, counts } = self;
        let (rows, vocab) = logits.shape().as_matrix();
        let (invalid, run) = (|what| Err(Error::Invalid { op: OP, what }), positions.tokens);
        let all = rows.saturating_mul(run);
        if positions.check(OP, all)? != rows {
            return invalid(format!("{rows} rows; one comes after the {run} tokens of a sequence"));
        }
        let sequences = counts.shape().dims().first().copied().unwrap_or(0);
        if sequences == 0 && rows > 0 {
            return invalid("no counts".into());
        }
        let biased = if biases.shape().dims() == [1, vocab] { 1 } else { sequences };
        let shapes = [
            ("the tokens", tokens.shape(), vec![all]),
            ("the counts", counts.shape(), vec![sequences, vocab]),
            ("the biases", biases.shape(), vec![biased, vocab]),
            ("the penalties", penalties.shape(), vec![sequences, 4]),
        ];
        for (what, found, dims) in shapes {
            if found.dims() != dims {
                let expected = format!("{dims:?}");
                return Err(Error::Shape { op: OP, what, expected, found });
            }
        }
        let params = Params {
            length: logits.len() as u32,
            vocab: vocab as u32,
            sequences: sequences as u32,
            biases: biased as u32,
            run: run as u32,
            zero: 0,
        };
        encoder.dispatch(
            &PENALIZE,
            &params,
            &[tokens, positions.sequences, penalties, biases, counts, logits],
            [logits.len(), 1, 1],
        )
    }
}

pub(crate) mod host {
    use super::*;

    /// CPU reference of [`Penalizer::forward`], for one sequence: bit-identical, but for numbers that
    /// are too small to be normal.
    ///
    /// # Errors
    /// [`Error::Invalid`] for penalties out of range, or lengths that differ.
    pub fn penalize(
        logits: &mut [f32],
        token: u32,
        counts: &mut [u32],
        bias: &[f32],
        penalties: &Penalties,
    ) -> Result<()> {
        penalties.check()?;
        if counts.len() != logits.len() || bias.len() != logits.len() {
            let what = format!(
                "{} logits, {} counts, a bias of {}",
                logits.len(),
                counts.len(),
                bias.len()
            );
            return Err(Error::Invalid { op: OP, what });
        }
        if let Some(count) = counts.get_mut(token as usize) {
            *count += 1;
        }
        for ((logit, &count), &bias) in logits.iter_mut().zip(&*counts).zip(bias) {
            if bias != 0.0 {
                *logit += bias;
            }
            *logit = penalties.apply(*logit, count);
        }
        Ok(())
    }
}
