//! Recorded steps: what they differ in, and what they give.

use super::graph::{SamplerFeatures, Step, StepRequest};
use crate::{
    error::Result,
    model::engine::interface::{Pending, unchosen},
};
use std::sync::Arc;

/// A recorded step, and what it was recorded for.
pub(super) struct CachedStep {
    pub kind: StepShape,
    /// The longest context that its attention is recorded for.
    pub span: usize,
    /// What it has of a choice of tokens.
    pub features: SamplerFeatures,
    pub step: Arc<Step>,
}

/// What steps differ in, beside the length of their context.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StepShape {
    pub sequences: usize,
    /// Tokens of each.
    pub run: usize,
    pub output: StepRequest,
    /// Whether recurrent layers keep what they are given.
    pub keeps: bool,
}

/// What a step has given.
pub(super) enum StepOutput {
    /// Logits, states, or the residual stream.
    Rows(Vec<f32>),
    Next(Vec<u32>),
}

impl StepOutput {
    /// That of a step which gives rows.
    pub async fn rows(output: Pending<Self>) -> Result<Vec<f32>> {
        if let Self::Rows(rows) = output.await? { Ok(rows) } else { Err(unchosen()) }
    }

    /// That of a step which gives tokens.
    pub async fn next(output: Pending<Self>) -> Result<Vec<u32>> {
        if let Self::Next(next) = output.await? { Ok(next) } else { Err(unchosen()) }
    }
}
