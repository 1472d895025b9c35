//! What sessions will take: their memory, and the kernels that they use.

use super::{
    graph::{GpuModel, StepRequest, Submit},
    session::{AHEAD, FEW_ROWS, FIRST_SPAN, GpuSession, MOST_STEPS, SHORT},
    step::StepShape,
};
use crate::{
    error::Result,
    gpu::{
        capabilities::Capabilities,
        memory::{plan::PlannedKernel, pool::buffer_bytes},
    },
    memory::Footprint,
    model::engine::{
        interface::{EngineSession as _, SessionOptions},
        sampling_plan::{LogitChanges, SamplingPlan},
    },
    ops::transformer::{Penalties, SampleOptions, attention::most_share_bytes},
    tuning,
};
use std::{iter, sync::Arc};

impl GpuModel {
    /// The memory that such a session will need.
    pub fn footprint(&self, options: SessionOptions) -> Result<Footprint> {
        let SessionOptions { sequences, capacity, .. } = options;
        let (context, plan) = self.context.planning();
        let model = Arc::new(self.on(context));
        let mut session =
            GpuSession::new(model.clone(), model.memory(options)?, vec![0; sequences])?;
        // The way to choose that takes most.
        if self.ends.head.is_some() {
            session
                .choose_by(penalised(SampleOptions::default().top_k(2).top_p(0.5), sequences))?;
        }
        let batch = self.batch;
        let record = |session: &GpuSession, kind: StepShape| {
            session.record_kind(kind, session.features(kind), capacity, Submit::Later).map(drop)
        };
        let run = capacity.min(batch);
        let prompts = sequences.min(batch / run);
        record(&session, self.kind(prompts, run, StepRequest::Next(1)))?;
        // Larger ones are not kept, so that one of them is there at a time.
        for sequences in (1..=sequences.min(FEW_ROWS))
            .rev()
            .take(MOST_STEPS)
            .chain((sequences > FEW_ROWS).then_some(sequences))
        {
            record(&session, self.kind(sequences, 1, StepRequest::Next(1)))?;
        }
        // Shorter prompts, and many together, may take more for attention than the longest does.
        let (shape, capabilities) = (self.config.attention(), self.context.capabilities());
        let shares = |prompts: usize| {
            most_share_bytes(shape, capacity.min(batch / prompts), prompts, capacity, capabilities)
        };
        let shares = (1..=sequences.min(batch)).map(shares).max().unwrap_or(0);
        let (cache, activations) = (
            plan.bytes(Footprint::CACHE),
            plan.bytes(Footprint::ACTIVATIONS) + buffer_bytes(shares),
        );
        if self.ends.head.is_none() {
            let staging =
                buffer_bytes(4 * (prompts * run).max(sequences) as u64 * self.config.hidden as u64);
            return Ok(Footprint { cache, activations, staging, ..Footprint::default() });
        }
        let logits = |rows: usize| buffer_bytes(4 * (rows * self.config.vocab) as u64);
        // Prompts that are shorter may end together.
        let ends = sequences.min(batch);
        let activations = activations + logits(ends) - logits(prompts);
        let staging = (1 + AHEAD) as u64 * buffer_bytes(4 * sequences as u64) + logits(ends);
        Ok(Footprint { cache, activations, staging, ..Footprint::default() })
    }

    /// The kernels of prompts of any length, and of steps, of such a session: found by recording
    /// them on a context that plans.
    pub(super) fn kernels(&self, options: SessionOptions) -> Result<Vec<PlannedKernel>> {
        let SessionOptions { sequences, capacity, .. } = options;
        let (context, plan) = self.context.planning();
        let model = Arc::new(self.on(context));
        let mut session =
            GpuSession::new(model.clone(), model.memory(options)?, vec![0; sequences])?;
        let contexts: Vec<usize> = iter::successors(Some(FIRST_SPAN), |span| Some(2 * span))
            .take_while(|&span| span < capacity)
            .collect();
        let record = |session: &GpuSession, kind: StepShape| {
            let mut spans =
                contexts.iter().filter(|&&span| span > kind.run).chain([&kind.run, &capacity]);
            spans.try_for_each(|&longest| {
                session.record_kind(kind, session.features(kind), longest, Submit::Later).map(drop)
            })
        };
        let batch = self.batch;
        for run in lengths(capacity.min(batch), self.context.capabilities()) {
            // Of one sequence, and of as many as have their prompts computed together.
            let together = Some(sequences.min(batch / run)).filter(|&sequences| sequences > 1);
            for sequences in iter::once(1).chain(together) {
                record(&session, self.kind(sequences, run, StepRequest::Logits(1)))?;
            }
        }
        // The largest logit, and the way to choose that takes most: others take a part of its
        // kernels.
        for options in [
            SampleOptions::default().temperature(0.0),
            SampleOptions::default().top_k(2).top_p(0.5),
        ] {
            session.choose_by(penalised(options, sequences))?;
            for sequences in lengths(sequences, self.context.capabilities()) {
                record(&session, self.kind(sequences, 1, StepRequest::Next(1)))?;
            }
        }
        Ok(plan.kernels())
    }
}

/// A choice by the same options for all of some sequences, of logits that penalties change.
fn penalised(options: SampleOptions, sequences: usize) -> SamplingPlan {
    let penalties = Penalties::NONE.presence(1.0);
    SamplingPlan {
        changes: vec![LogitChanges { penalties, ..LogitChanges::NONE }; sequences],
        ..SamplingPlan::new(vec![(options, 0); sequences])
    }
}

/// Numbers of tokens up to `most` that kernels may be chosen by: few of them matter one by one, but
/// that of any choice, and the next.
fn lengths(most: usize, capabilities: &Capabilities) -> impl Iterator<Item = usize> + use<> {
    let choices: Vec<_> =
        tuning::TuningKey::ALL.iter().map(|&key| capabilities.tuned(key)).collect();
    (1..=most).filter(move |&n| {
        n <= SHORT
            || n % SHORT <= 1
            || n == most
            || choices.iter().any(|&choice| n == choice || n - 1 == choice)
    })
}
