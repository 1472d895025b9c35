//! Biases and penalties: logits of the next token are changed by which tokens a sequence has. Repetition: Keskar et al. 2019, "CTRL", arXiv 1909.05858.

use super::cache::NewTokens;
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

params! { struct Params { length: u32, vocab: u32, sequences: u32, repetition: f32, inverse: f32, presence: f32, frequency: f32, zero: u32 } }

static PENALIZE: Kernel = Kernel::trusted(
    "penalize",
    Params::FIELDS,
    &[read("tokens", U32), read("runs", U32), read("bias", F32), read_write("counts", U32), read_write("logits", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "transformer/penalize"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&PENALIZE];

const OP: &str = "penalize";

/// What [`penalize`] makes of the logits of tokens that a sequence has.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Penalties {
    /// Divides logits where they are positive (it multiplies with the rounded 1 / repetition), and multiplies the others; 1 changes nothing.
    pub repetition: f32,
    /// Subtracted for tokens that were generated.
    pub presence: f32,
    /// Subtracted for each time that a token was generated.
    pub frequency: f32,
}

impl Penalties {
    /// Those that change nothing.
    pub const NONE: Self = Self { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    /// In the counts of [`penalize`]: the sequence has the token, though it was not generated.
    pub const SEEN: u32 = 1 << 31;

    /// These penalties.
    pub fn new(repetition: f32, presence: f32, frequency: f32) -> Self {
        Self { repetition, presence, frequency }
    }

    /// Checks that the numbers are in range.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that is not.
    pub fn check(&self) -> Result<()> {
        let invalid = |what| Err(Error::Invalid { op: OP, what });
        if !(self.repetition.is_finite() && self.repetition > 0.0) {
            return invalid(format!("repetition_penalty is {}; it must be finite and positive", self.repetition));
        }
        for (name, penalty) in [("presence_penalty", self.presence), ("frequency_penalty", self.frequency)] {
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

    /// The logit of a token that was generated so many times; [`Penalties::SEEN`] as in [`penalize`].
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

/// Changes `logits` `[rows, vocab]`, those after one new token of each sequence, in place. `bias` `[vocab]` is added where it is not 0; then come the penalties. `counts` `[sequences, vocab]`
/// says how often each token was generated, plus [`Penalties::SEEN`] for tokens of the prompt; of `tokens` `[rows]`, the new ones, the count
/// is raised first. So a step that is run again and again keeps its counts by itself. Each sum and product is rounded, as on the CPU.
///
/// # Errors
/// [`Error::Invalid`] for penalties out of range, or runs of several tokens; [`Error::Shape`] for tensors that do not fit.
pub fn penalize(
    encoder: &mut Encoder,
    logits: &Tensor<f32>,
    tokens: &Tensor<u32>,
    new: &NewTokens<'_>,
    counts: &Tensor<u32>,
    bias: &Tensor<f32>,
    penalties: &Penalties,
) -> Result<()> {
    penalties.check()?;
    let (rows, vocab) = logits.shape().as_matrix();
    if new.check(OP, rows)? != rows {
        return Err(Error::Invalid { op: OP, what: format!("runs of {} tokens; each is counted before the next is chosen", new.run) });
    }
    let sequences = counts.shape().dims()[0];
    if sequences == 0 && rows > 0 {
        return Err(Error::Invalid { op: OP, what: "no counts".into() });
    }
    let shapes = [("the tokens", tokens.shape(), vec![rows]), ("the counts", counts.shape(), vec![sequences, vocab])];
    for (what, shape, dims) in shapes.into_iter().chain([("the bias", bias.shape(), vec![vocab])]) {
        if shape.dims() != dims {
            return Err(Error::Shape { op: OP, what, expected: format!("{dims:?}"), found: shape });
        }
    }
    let &Penalties { repetition, presence, frequency } = penalties;
    let (length, vocab, inverse) = (logits.len() as u32, vocab as u32, penalties.inverse());
    let params = Params { length, vocab, sequences: sequences as u32, repetition, inverse, presence, frequency, zero: 0 };
    encoder.dispatch(&PENALIZE, &params, &[tokens, new.runs, bias, counts, logits], [logits.len(), 1, 1])
}

/// The CPU twin for one sequence: the same bits, but of numbers that are too small to be normal.
///
/// # Errors
/// [`Error::Invalid`] for penalties out of range, or lengths that differ.
pub fn penalize_cpu(logits: &mut [f32], token: u32, counts: &mut [u32], bias: &[f32], penalties: &Penalties) -> Result<()> {
    penalties.check()?;
    if counts.len() != logits.len() || bias.len() != logits.len() {
        let what = format!("{} logits, {} counts, a bias of {}", logits.len(), counts.len(), bias.len());
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
