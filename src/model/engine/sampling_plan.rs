//! How an engine chooses tokens.

use crate::{
    error::Result,
    ops::{
        host,
        transformer::{Penalties, SampleOptions},
    },
};
use std::collections::BTreeMap;

/// How an engine chooses the next token of every sequence.
pub(crate) struct SamplingPlan {
    /// By which options, and from which seed. A token's random numbers are those of the position of
    /// the token before it.
    pub draws: Vec<(SampleOptions, u64)>,
    /// What changes the logits before: as many.
    pub changes: Vec<LogitChanges>,
    /// Which tokens are allowed, on the CPU: as many.
    pub masks: Vec<Option<Vec<u32>>>,
}

/// What [`Penalizer`](crate::transformer::Penalizer) takes of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogitChanges {
    pub penalties: Penalties,
    /// What is added to logits, by token.
    pub bias: BTreeMap<u32, f32>,
    /// `[vocab]`, without the last token: a step counts the last of its own. None where nobody asks
    /// for them, or where the engine was told them when the sequence began, and has counted since.
    pub counts: Option<Vec<u32>>,
}

impl LogitChanges {
    /// That which changes nothing.
    pub const NONE: Self = Self { penalties: Penalties::NONE, bias: BTreeMap::new(), counts: None };

    /// Returns whether it changes nothing.
    pub fn is_none(&self) -> bool {
        self.penalties == Penalties::NONE && self.bias.is_empty()
    }

    /// What is added to the logit of each token of a vocabulary of this many.
    pub fn biases(&self, vocab: usize) -> Vec<f32> {
        let mut biases = vec![0.0; vocab];
        self.bias.iter().for_each(|(&id, &bias)| biases[id as usize] = bias);
        biases
    }
}

impl SamplingPlan {
    /// By these options and seeds, from logits as they are.
    pub fn new(draws: Vec<(SampleOptions, u64)>) -> Self {
        let changes = vec![LogitChanges::NONE; draws.len()];
        let masks = vec![None; draws.len()];
        Self { draws, changes, masks }
    }

    /// Takes the masks of the choice before it, and its counts where it has none of its own.
    pub fn keep_state(&mut self, before: Self) {
        self.masks = before.masks;
        let pairs = self.changes.iter_mut().zip(before.changes);
        pairs.for_each(|(change, before)| change.counts = change.counts.take().or(before.counts));
    }

    /// The next token of a sequence, on the CPU: from the `logits` `[vocab]` after `token`, which
    /// is at `position`.
    pub fn next(
        &mut self,
        sequence: usize,
        token: u32,
        position: usize,
        logits: &mut [f32],
    ) -> Result<u32> {
        let (change, vocab) = (&mut self.changes[sequence], logits.len());
        if !change.is_none() {
            let biases = change.biases(vocab);
            let counts = change.counts.get_or_insert_with(|| vec![0; vocab]);
            host::penalize(logits, token, counts, &biases, &change.penalties)?;
        }
        if let Some(mask) = &self.masks[sequence] {
            host::mask_logits(logits, mask);
        }
        let (options, seed) = &self.draws[sequence];
        host::sample(logits, *seed, position as u32, options)
    }
}
