//! A model's parameters, and the steps of its layers with the numbers of their parameters.

use crate::error::{Error, Result};
use bitnet_wgpu::{
    Error as LibraryError, Shape,
    formats::ModelConfig,
    internals::{Gains, LayerStep, Matrix, Stack, end_tensors, layer_tensors},
    transformer::AttentionShape,
};

/// The largest tensor, in bytes: kernels count in 32 bits.
const MOST_BYTES: u64 = u32::MAX as u64;

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An embedding or an LM head, which stays in floats.
    Table,
    /// The matrix of a linear layer, which is made ternary in each step.
    Linear,
    /// The gains of a norm.
    Gain,
    /// A matrix of low rank beside a linear layer.
    Adapter,
}

/// A parameter: its name in transformers with `.weight`, its dimensions, what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterInfo {
    /// The name in safetensors files.
    pub name: String,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// What it is.
    pub kind: Kind,
}

impl ParameterInfo {
    pub(crate) fn numbers(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }

    /// Bytes of a ternary matrix: 2 bits for each number, and a scale for each row.
    pub(crate) fn packed_bytes(&self) -> u64 {
        self.numbers().div_ceil(4) + 4 * self.shape[0] as u64
    }

    pub(crate) fn dimensions(&self) -> Shape {
        match *self.shape {
            [rows, columns] => [rows, columns].into(),
            _ => [self.shape.iter().product()].into(),
        }
    }
}

/// A step of a layer. Numbers are those of parameters.
#[derive(Clone, Debug)]
pub enum Step {
    Norm(usize),
    Linear(Vec<usize>),
    HeadNorms { queries: usize, keys: usize },
    Attention,
    Gate,
    Add,
}

/// What a model is made of.
pub struct Plan {
    pub parameters: Vec<ParameterInfo>,
    pub layers: Vec<Vec<Step>>,
    pub embedding: usize,
    pub norm: usize,
    /// The embedding where it is the LM head.
    pub head: usize,
}

/// What a step gives to the next one.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    /// Nothing: the next step reads the residual stream.
    Stream,
    One,
    /// Queries, keys and values.
    Heads,
    /// Gates and ups.
    Halves,
}

impl Plan {
    /// Returns the plan of a model.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a step that cannot be trained; [`LibraryError::TooLarge`] for a
    /// tensor beyond 4 GiB.
    pub fn new(config: &ModelConfig) -> Result<Self> {
        check_graph(config)?;
        let ends = end_tensors(config);
        let mut plan =
            Self { parameters: Vec::new(), layers: Vec::new(), embedding: 0, norm: 0, head: 0 };
        plan.embedding = plan.matrix("", &ends.embedding, Kind::Table)?;
        for layer in 0..config.layers {
            let prefix = format!("model.layers.{layer}.");
            let steps = plan.layer(config, &prefix)?;
            plan.layers.push(steps);
        }
        plan.norm = plan.gains("", &ends.norm);
        plan.head = match &ends.untied_head {
            Some(head) => plan.matrix("", head, Kind::Table)?,
            None => plan.embedding,
        };
        Ok(plan)
    }

    /// Returns the number of trained numbers.
    pub fn numbers(&self) -> u64 {
        self.parameters.iter().map(ParameterInfo::numbers).sum()
    }

    fn layer(&mut self, config: &ModelConfig, prefix: &str) -> Result<Vec<Step>> {
        let (mut flow, mut steps) = (Flow::Stream, Vec::new());
        let unsupported = |step: &str| Error::Unsupported {
            architecture: config.architecture.clone(),
            step: step.to_owned(),
        };
        for step in &layer_tensors(config).0 {
            let (made, next) = match step {
                LayerStep::Norm(gains) if matches!(flow, Flow::Stream | Flow::One) => {
                    (Step::Norm(self.gains(prefix, gains)), Flow::One)
                }
                LayerStep::Linear(Stack::One(parts))
                    if matches!(flow, Flow::Stream | Flow::One) =>
                {
                    let next = match parts.len() {
                        1 => Flow::One,
                        2 => Flow::Halves,
                        3 => Flow::Heads,
                        _ => return Err(unsupported("a stack of more than three linear layers")),
                    };
                    let parts = parts.iter().map(|part| self.matrix(prefix, part, Kind::Linear));
                    (Step::Linear(parts.collect::<Result<_>>()?), next)
                }
                LayerStep::Linear(Stack::Normed(_)) => {
                    return Err(unsupported("a norm of its own before every linear layer"));
                }
                LayerStep::Experts(_) => return Err(unsupported("a mixture of experts")),
                LayerStep::HeadNorms { queries, keys } if flow == Flow::Heads => {
                    let (queries, keys) = (self.gains(prefix, queries), self.gains(prefix, keys));
                    (Step::HeadNorms { queries, keys }, Flow::Heads)
                }
                LayerStep::Attention if flow == Flow::Heads => (Step::Attention, Flow::One),
                LayerStep::Gate if flow == Flow::Halves => (Step::Gate, Flow::One),
                LayerStep::Add if flow == Flow::One => (Step::Add, Flow::Stream),
                _ => return Err(unsupported("the order of the steps of a layer")),
            };
            flow = next;
            steps.push(made);
        }
        match flow {
            Flow::Stream => Ok(steps),
            _ => Err(unsupported("a layer that does not end with a sum")),
        }
    }

    fn matrix(&mut self, prefix: &str, matrix: &Matrix, kind: Kind) -> Result<usize> {
        let &Matrix { rows, columns, .. } = matrix;
        let name = format!("{prefix}{}.weight", matrix.name);
        let bytes = (rows as u64).checked_mul(columns as u64).and_then(|n| n.checked_mul(4));
        let bytes = bytes.unwrap_or(u64::MAX);
        if bytes > MOST_BYTES {
            return Err(LibraryError::TooLarge { what: name, bytes, limit: MOST_BYTES }.into());
        }
        self.parameters.push(ParameterInfo { name, shape: vec![rows, columns], kind });
        Ok(self.parameters.len() - 1)
    }

    fn gains(&mut self, prefix: &str, gains: &Gains) -> usize {
        let name = format!("{prefix}{}.weight", gains.name);
        self.parameters.push(ParameterInfo { name, shape: vec![gains.len], kind: Kind::Gain });
        self.parameters.len() - 1
    }
}

/// Refuses what is not a step of a layer and changes what is computed.
fn check_graph(c: &ModelConfig) -> Result<()> {
    let trained = ["bitnet", "llama", "qwen3"].contains(&&*c.architecture);
    let features = [
        (c.local.is_some(), "attention within a sliding window"),
        (c.hadamard.is_some(), "a rotation of activations (Hadamard)"),
        (c.embedding_scale != 1.0, "a scale of the embedding"),
        (c.query_scale != 1.0, "a scale of queries"),
        (c.residual_scale != 1.0, "a scale of the residual stream"),
        (c.logit_scale != 1.0, "a scale of logits"),
        (c.head_dim > AttentionShape::MAX_DIM, "attention with heads above 256 features"),
        (!trained, "the layer of this model_type"),
    ];
    match features.into_iter().find(|(present, _)| *present) {
        Some((_, step)) => {
            Err(Error::Unsupported { architecture: c.architecture.clone(), step: step.to_owned() })
        }
        None => Ok(()),
    }
}
