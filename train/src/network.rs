//! A model whose parameters are on a GPU, and what it learns from.

use crate::{
    data::Corpus,
    error::Result,
    plan::{ParameterInfo, Plan},
    settings::{LinearMode, Precision, Settings},
};
use bitnet_wgpu::{
    Context, Error as LibraryError, Tensor, bitnet::Gate, formats::ModelConfig,
    internals::ModelGraphInternals as _, weights::TernaryMatrix,
};

/// A weight of a model.
pub enum Weight {
    Float(Tensor<f32>),
    /// Of a linear layer that does not learn.
    Ternary(TernaryMatrix),
}

/// A model whose parameters are on a GPU.
pub struct Network {
    pub context: Context,
    pub plan: Plan,
    /// In the order of the plan.
    pub weights: Vec<Weight>,
    /// What learns: the parameters of the plan, or adapters.
    pub trained: Vec<ParameterInfo>,
    pub parameters: Vec<Tensor<f32>>,
    /// The number of A among what learns, by parameters of the plan; B is the next one.
    pub adapters: Vec<Option<usize>>,
    /// Whether adapters are computed.
    pub adapted: bool,
    /// Whether only adapters learn.
    pub frozen: bool,
    /// The factor of adapters.
    pub factor: f32,
    pub linear: LinearMode,
    pub precision: Precision,
    pub gate: Gate,
    pub eps: f32,
    pub head_dim: usize,
    /// Cosines and sines of rotary angles, `[context, head_dim / 2, 2]`.
    pub angles: Tensor<f32>,
}

/// Tensors from one step to the next: one, or one of each matrix of a linear step.
pub type Value = Vec<Tensor<f32>>;

/// The target of a token that is not learned.
pub const IGNORED: u32 = u32::MAX;

/// Windows are padded to this many tokens, so that few shapes are allocated.
const PADDING: usize = 16;

/// Token ids of some windows, `[batch · tokens]`, and the ids that follow them.
pub struct Batch {
    pub ids: Tensor<u32>,
    /// [`IGNORED`] where the next token is not learned.
    pub targets: Tensor<u32>,
    pub windows: usize,
    pub tokens: usize,
    /// Number of targets that are learned.
    pub learned: usize,
}

/// A window of `tokens + 1` ids at most, and which of them are learned, if not all.
pub type Window<'a> = (&'a [u32], Option<&'a [bool]>);

impl Batch {
    /// Copies windows to the GPU. All are as long as the longest one: padding is behind them, where
    /// no token attends to it, and repeats the last id.
    ///
    /// # Errors
    /// What the device reports.
    pub fn upload(context: &Context, windows: &[Window<'_>], most: usize) -> Result<Self> {
        let longest = windows.iter().map(|(ids, _)| ids.len().saturating_sub(1)).max();
        let tokens = longest.unwrap_or(0).next_multiple_of(PADDING).min(most);
        let (mut ids, mut targets) = (Vec::new(), Vec::new());
        for (window, scored) in windows {
            let count = window.len().saturating_sub(1).min(tokens);
            ids.extend_from_slice(&window[..count]);
            ids.extend(std::iter::repeat_n(window[count], tokens - count));
            let is_learned = |at: usize| scored.is_none_or(|scored| scored[at]);
            targets.extend((1..=count).map(|at| if is_learned(at) { window[at] } else { IGNORED }));
            targets.extend(std::iter::repeat_n(IGNORED, tokens - count));
        }
        let shape = [windows.len() * tokens];
        Ok(Self {
            learned: targets.iter().filter(|&&target| target != IGNORED).count(),
            ids: context.upload(&ids, shape)?,
            targets: context.upload(&targets, shape)?,
            windows: windows.len(),
            tokens,
        })
    }

    /// Copies windows of a text to the GPU.
    ///
    /// # Errors
    /// What the device reports.
    pub fn of_text(context: &Context, text: &Corpus, windows: &[usize]) -> Result<Self> {
        let window = |&index: &usize| (text.window(index), text.scored(index));
        Self::upload(context, &windows.iter().map(window).collect::<Vec<_>>(), text.context())
    }
}

/// What a network is made of.
pub struct Parts {
    pub plan: Plan,
    pub weights: Vec<Weight>,
    pub trained: Vec<ParameterInfo>,
    pub parameters: Vec<Tensor<f32>>,
    pub adapters: Vec<Option<usize>>,
}

impl Network {
    /// Makes a network of parameters that are on the GPU already.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(
        context: &Context,
        config: &ModelConfig,
        parts: Parts,
        settings: &Settings,
    ) -> Result<Self> {
        let Parts { plan, weights, trained, parameters, adapters } = parts;
        let tokens = settings.context;
        let angles =
            context.upload(&config.rope_angles(tokens), [tokens, config.head_dim / 2, 2])?;
        Ok(Self {
            context: context.clone(),
            plan,
            weights,
            trained,
            parameters,
            adapters,
            adapted: settings.lora.is_some(),
            frozen: settings.lora.is_some(),
            factor: settings.lora.as_ref().map_or(0.0, |lora| lora.factor()),
            linear: settings.linear,
            precision: settings.precision,
            gate: config.gate(),
            eps: config.eps,
            head_dim: config.head_dim,
            angles,
        })
    }

    /// Returns a weight that is in floats: an embedding, gains, or one that learns.
    ///
    /// # Errors
    /// [`LibraryError::Invalid`] for a ternary one, which the plan does not ask for.
    pub fn float(&self, index: usize) -> Result<&Tensor<f32>> {
        match &self.weights[index] {
            Weight::Float(weight) => Ok(weight),
            Weight::Ternary(_) => {
                let what = format!("`{}` is ternary", self.plan.parameters[index].name);
                Err(LibraryError::Invalid { op: "training", what }.into())
            }
        }
    }

    /// Returns the gradient of a weight that learns.
    pub fn gradient<'a>(
        &self,
        gradients: &'a [Tensor<f32>],
        index: usize,
    ) -> Option<&'a Tensor<f32>> {
        if self.frozen { None } else { gradients.get(index) }
    }

    /// Returns A `[rank, columns]` and B `[rows, rank]` of a layer, with the number of A.
    pub fn adapter(&self, index: usize) -> Option<(usize, &Tensor<f32>, &Tensor<f32>)> {
        let at = (*self.adapters.get(index)?).filter(|_| self.adapted)?;
        Some((at, &self.parameters[at], &self.parameters[at + 1]))
    }
}
