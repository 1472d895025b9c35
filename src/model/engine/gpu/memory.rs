//! What layers keep of the sequences of a session.

use crate::{
    element::Element,
    error::Result,
    formats::{Hybrid, ModelConfig},
    gpu::{context::Context, tensor::Tensor},
    model::engine::interface::SessionOptions,
    ops::transformer::{AttentionShape, HostKvCache, KvCache},
};

/// What layers keep of the sequences of a session.
pub(super) struct Memory {
    pub layers: Vec<LayerMemory>,
    /// The cosine and sine of every rotary angle, by position.
    pub angles: Tensor<f32>,
    /// Cosines and sines for layers with a sliding window, where there are some.
    pub local_angles: Option<Tensor<f32>>,
}

impl Memory {
    /// That of empty sequences.
    pub fn new(context: &Context, c: &ModelConfig, options: SessionOptions) -> Result<Self> {
        let SessionOptions { sequences, capacity, kv_type } = options;
        let element = kv_type.unwrap_or(Element::F32);
        let layer = |layer| {
            if let Some(hybrid) = c.hybrid.as_ref().filter(|_| c.is_recurrent(layer)) {
                return DeltaState::new(context, hybrid, sequences).map(LayerMemory::Recurrent);
            }
            KvCache::new(context, c.attention(), sequences, capacity, element)
                .map(|cache| LayerMemory::Attention(cache.window(c.window(layer))))
        };
        let layers = (0..c.layers).map(layer).collect::<Result<_>>()?;
        let upload = |angles: Vec<f32>| context.upload(&angles, [capacity, c.head_dim / 2, 2]);
        let (angles, local_angles) =
            (upload(c.rope_angles(capacity))?, c.local_angles(capacity).map(upload).transpose()?);
        Ok(Self { layers, angles, local_angles })
    }

    /// A memory of its own with the same contents.
    pub fn duplicate(&self) -> Result<Self> {
        let layers = self.layers.iter().map(LayerMemory::duplicate).collect::<Result<_>>()?;
        Ok(Self { layers, angles: self.angles.clone(), local_angles: self.local_angles.clone() })
    }

    /// The states of recurrent layers, in their order.
    pub fn states(&self) -> impl Iterator<Item = &DeltaState> {
        self.layers.iter().filter_map(|layer| match layer {
            LayerMemory::Recurrent(state) => Some(state),
            LayerMemory::Attention(_) => None,
        })
    }
}

/// What a layer keeps of the sequences of a session.
#[derive(Clone)]
pub(super) enum LayerMemory {
    /// Keys and values.
    Attention(KvCache),
    /// A state for each sequence.
    Recurrent(DeltaState),
}

impl LayerMemory {
    fn duplicate(&self) -> Result<Self> {
        Ok(match self {
            Self::Attention(cache) => Self::Attention(cache.duplicate()?),
            Self::Recurrent(DeltaState { state, conv }) => {
                Self::Recurrent(DeltaState { state: state.duplicate()?, conv: conv.duplicate()? })
            }
        })
    }

    /// Copies keys and values back: the sequences have this many tokens. Recurrent layers have
    /// none.
    pub async fn read(self, shape: AttentionShape, lengths: &[usize]) -> Result<Vec<HostKvCache>> {
        match self {
            Self::Attention(cache) => cache.read(lengths)?.await,
            Self::Recurrent(_) => lengths.iter().map(|_| HostKvCache::new(shape)).collect(),
        }
    }
}

/// What a recurrent layer keeps of sequences. That of a sequence without tokens counts for nothing:
/// kernels take it for zeros.
#[derive(Clone)]
pub(super) struct DeltaState {
    /// `[sequences, value_heads, key_dim, value_dim]`
    pub state: Tensor<f32>,
    /// The last tokens before the convolution, `[sequences, kernel - 1, mixed]`.
    pub conv: Tensor<f32>,
}

impl DeltaState {
    pub fn new(context: &Context, hybrid: &Hybrid, sequences: usize) -> Result<Self> {
        let Hybrid { value_heads, key_dim, value_dim, kernel, .. } = *hybrid;
        let state = Tensor::zeros(context, [sequences, value_heads, key_dim, value_dim])?;
        Ok(Self { state, conv: Tensor::zeros(context, [sequences, kernel - 1, hybrid.mixed()])? })
    }

    /// Copies it back: for each sequence its state, then its last tokens, or zeros where it has no
    /// tokens.
    pub async fn read(self, lengths: &[usize]) -> Result<Vec<Vec<f32>>> {
        let sequences = lengths.len().max(1);
        let (states, tokens) = (self.state.read(), self.conv.read());
        let (states, tokens) = (states.await?, tokens.await?);
        let parts = states
            .chunks_exact(states.len() / sequences)
            .zip(tokens.chunks_exact(tokens.len() / sequences));
        let of_sequence = |((state, tokens), &length): ((&[f32], &[f32]), &usize)| match length {
            0 => vec![0.0; state.len() + tokens.len()],
            _ => [state, tokens].concat(),
        };
        Ok(parts.zip(lengths).map(of_sequence).collect())
    }

    /// Overwrites it with what was read: the numbers of each sequence.
    pub fn write(&self, sequences: &[&[f32]]) -> Result<()> {
        let state = self.state.len() / sequences.len().max(1);
        let parts = sequences.iter().map(|numbers| numbers.split_at(state.min(numbers.len())));
        let (states, tokens): (Vec<&[f32]>, Vec<&[f32]>) = parts.unzip();
        self.state.write(&states.concat())?;
        self.conv.write(&tokens.concat())
    }
}

/// What the states of a recurrent layer are advanced by.
#[derive(Clone)]
pub(super) struct DeltaInputs {
    /// Queries, keys, values and gates, `[rows, mixed + values]`.
    pub x: Tensor<f32>,
    /// `[rows, value_heads]`
    pub alpha: Tensor<f32>,
    pub beta: Tensor<f32>,
}

impl DeltaInputs {
    /// Those of this many rows.
    pub fn new(context: &Context, hybrid: &Hybrid, rows: usize) -> Result<Self> {
        let matrix = |columns| Tensor::uninit(context, [rows, columns]);
        let (heads, columns) = (hybrid.value_heads, hybrid.mixed() + hybrid.values());
        Ok(Self { x: matrix(columns)?, alpha: matrix(heads)?, beta: matrix(heads)? })
    }

    /// The first rows, in the same memory.
    pub fn beginning(&self, rows: usize) -> Result<Self> {
        let first = |x: &Tensor<f32>| x.beginning([rows, x.shape().as_matrix().1]);
        Ok(Self { x: first(&self.x)?, alpha: first(&self.alpha)?, beta: first(&self.beta)? })
    }
}
