//! A model whose parameters are on a GPU, and what it learns from.

use crate::{error::Result, plan::Plan, settings::LinearMode};
use bitnet_wgpu::{
    Context, Tensor, bitnet::Gate, formats::ModelConfig, internals::ModelGraphInternals as _,
};

/// A model whose parameters are on a GPU.
pub struct Network {
    pub context: Context,
    pub plan: Plan,
    /// The parameters, in the order of the plan.
    pub parameters: Vec<Tensor<f32>>,
    pub linear: LinearMode,
    pub gate: Gate,
    pub eps: f32,
    pub head_dim: usize,
    /// Cosines and sines of rotary angles, `[context, head_dim / 2, 2]`.
    pub angles: Tensor<f32>,
}

/// Token ids of some windows, `[batch · tokens]`, and the ids that follow them.
pub struct Batch {
    pub ids: Tensor<u32>,
    pub targets: Tensor<u32>,
    pub windows: usize,
    pub tokens: usize,
}

impl Batch {
    /// Copies windows of `tokens + 1` ids to the GPU.
    ///
    /// # Errors
    /// What the device reports.
    pub fn upload<'a>(
        context: &Context,
        windows: impl Iterator<Item = &'a [u32]>,
        tokens: usize,
    ) -> Result<Self> {
        let (mut ids, mut targets, mut count) = (Vec::new(), Vec::new(), 0);
        for window in windows {
            ids.extend_from_slice(&window[..tokens]);
            targets.extend_from_slice(&window[1..]);
            count += 1;
        }
        let shape = [count * tokens];
        Ok(Self {
            ids: context.upload(&ids, shape)?,
            targets: context.upload(&targets, shape)?,
            windows: count,
            tokens,
        })
    }
}

impl Network {
    /// Makes a network of parameters that are on the GPU already, for windows of this many tokens.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(
        config: &ModelConfig,
        plan: Plan,
        parameters: Vec<Tensor<f32>>,
        linear: LinearMode,
        (context, tokens): (&Context, usize),
    ) -> Result<Self> {
        let angles =
            context.upload(&config.rope_angles(tokens), [tokens, config.head_dim / 2, 2])?;
        Ok(Self {
            context: context.clone(),
            plan,
            parameters,
            linear,
            gate: config.gate(),
            eps: config.eps,
            head_dim: config.head_dim,
            angles,
        })
    }
}
