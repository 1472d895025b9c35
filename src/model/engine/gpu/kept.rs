//! What recurrent layers keep of a sequence so that it can forget its last tokens: its states before
//! a step, and what the step gave them. States are then advanced again by a part of that.

use super::{
    graph::GpuModel,
    memory::{DeltaInputs, DeltaState, Memory},
    recurrent::{DeltaScratch, no_hybrid},
};
use crate::{
    error::Result, gpu::tensor::Tensor, limits::speculation::MOST_DRAFTED, memory::Footprint,
    ops::transformer::CachePositions,
};
use std::sync::Arc;

/// The most tokens of a step: a draft, and the token before it.
const MOST: usize = MOST_DRAFTED + 1;

/// What recurrent layers keep of one sequence.
pub(super) struct KeptStates {
    /// Which sequence, and how many tokens it had when its states were kept.
    of: Option<(usize, usize)>,
    /// How many tokens after those there are the inputs of.
    pub tokens: usize,
    /// By recurrent layer.
    states: Vec<DeltaState>,
    /// By layer.
    inputs: Arc<Vec<Option<DeltaInputs>>>,
}

impl KeptStates {
    /// Room for those of a sequence.
    pub fn new(model: &GpuModel) -> Result<Self> {
        let hybrid = model.config.hybrid.as_ref().ok_or_else(no_hybrid)?;
        let (cache, context) = (model.context.with_label(Footprint::CACHE), &model.context);
        let recurrent = hybrid.recurrent.iter();
        let states = recurrent.clone().filter(|recurrent| **recurrent);
        let inputs = recurrent.map(|recurrent| {
            recurrent.then(|| DeltaInputs::new(context, hybrid, MOST)).transpose()
        });
        Ok(Self {
            of: None,
            tokens: 0,
            states: states.map(|_| DeltaState::new(&cache, hybrid, 1)).collect::<Result<_>>()?,
            inputs: Arc::new(inputs.collect::<Result<_>>()?),
        })
    }

    /// The buffers for what layers are given.
    pub fn inputs(&self) -> Arc<Vec<Option<DeltaInputs>>> {
        self.inputs.clone()
    }

    /// Sequences are others. The buffers stay: steps are recorded with them.
    pub fn forget(&mut self) {
        self.of = None;
    }

    /// A sequence has its first `tokens` only.
    pub fn shorten(&mut self, sequence: usize, tokens: usize) {
        match self.of {
            Some((own, past)) if own == sequence && past <= tokens => {
                self.tokens = self.tokens.min(tokens - past);
            }
            Some((own, _)) if own == sequence => self.of = None,
            _ => {}
        }
    }

    /// Returns whether a step of `run` tokens is the one after which some may be forgotten.
    pub fn is_next(&self, sequences: &[usize], lengths: &[usize], run: usize) -> bool {
        self.of.is_some_and(|(own, past)| sequences == [own] && lengths[own] == past)
            && self.tokens == 0
            && run <= MOST
    }

    /// Keeps the states of a sequence of `past` tokens.
    pub fn keep(&mut self, memory: &Memory, (sequence, past): (usize, usize)) -> Result<()> {
        (self.of, self.tokens) = (None, 0);
        self.copy(memory, sequence, false)?;
        self.of = Some((sequence, past));
        Ok(())
    }

    /// Brings the states of a sequence back to its first `tokens`, or to as many fewer as can be.
    /// Returns how many.
    pub fn go_back(
        &mut self,
        model: &GpuModel,
        memory: &Memory,
        (sequence, tokens): (usize, usize),
    ) -> usize {
        self.shorten(sequence, tokens);
        let Some((_, past)) = self.of.filter(|&(own, _)| own == sequence) else { return 0 };
        let restored = self.copy(memory, sequence, true);
        match restored.and_then(|()| self.advance(model, memory, (sequence, past))) {
            Ok(()) => past + self.tokens,
            Err(error) => {
                log::warn!("states of recurrent layers are computed again: {error}");
                0
            }
        }
    }

    /// Copies the states of a sequence here, or `back`.
    fn copy(&self, memory: &Memory, sequence: usize, back: bool) -> Result<()> {
        let pairs = memory.states().zip(&self.states);
        let pairs =
            pairs.flat_map(|(own, kept)| [(&own.state, &kept.state), (&own.conv, &kept.conv)]);
        let copies: Vec<_> = match back {
            false => pairs.map(|(own, kept)| [(own, sequence), (kept, 0)]).collect(),
            true => pairs.map(|(own, kept)| [(kept, 0), (own, sequence)]).collect(),
        };
        Tensor::copy_parts(&copies)
    }

    /// Advances states by the tokens of which there are inputs.
    fn advance(
        &self,
        model: &GpuModel,
        memory: &Memory,
        (sequence, past): (usize, usize),
    ) -> Result<()> {
        if self.tokens == 0 {
            return Ok(());
        }
        let (context, rows) = (&model.context, self.tokens);
        let hybrid = model.config.hybrid.as_ref().ok_or_else(no_hybrid)?;
        let runs = context.upload(&[sequence as u32, past as u32], [1, 2])?;
        let (positions, scratch) =
            (CachePositions::new(&runs, rows), DeltaScratch::new(context, hybrid, rows)?);
        let mut encoder = context.encoder("states");
        let inputs = self.inputs.iter().zip(model.layers.iter());
        let layers = inputs.filter_map(|(inputs, layer)| Some((inputs.as_ref()?, layer.delta()?)));
        for (memory, (inputs, delta)) in memory.states().zip(layers) {
            let inputs = inputs.beginning(rows)?;
            model.advance(&mut encoder, (memory, positions), delta, &inputs, &scratch)?;
        }
        encoder.submit().map(drop)
    }
}
