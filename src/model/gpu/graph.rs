//! The model's operations, recorded in the order in which tokens go through them. Every call of an operation on the GPU is in this file.

use crate::{
    error::Result,
    formats::{
        config::ModelConfig,
        tensors::{Ends, Layer},
    },
    gpu::{context::Context, encoder::Encoder, out::Out, recording::Recording, tensor::Tensor},
    model::{
        engine::SessionOptions,
        layers::{HostEnds, HostLayer},
    },
    ops::{
        bitnet::{self, Layout, Norm, QuantizedActivations},
        transformer::{self, Draws, KvCache, NewTokens, Penalties, SampleOptions},
    },
    weights::{dense::DenseMatrix, ternary::matrix::TernaryMatrix},
};

type GpuLayer = Layer<TernaryMatrix, Tensor<f32>>;

/// The weights on a GPU.
pub(in crate::model) struct GpuModel {
    pub(super) context: Context,
    pub(super) config: ModelConfig,
    ends: Ends<DenseMatrix, Tensor<f32>>,
    layers: Vec<GpuLayer>,
}

/// What layers keep of the sequences of a session.
pub(super) struct Memory {
    /// Keys and values, by layer.
    pub caches: Vec<KvCache>,
    /// `[sequences]`: the tokens that each has had before those of a recording.
    pub positions: Tensor<u32>,
    /// The cosine and sine of every rotary angle, by position.
    angles: Tensor<f32>,
}

impl Memory {
    /// Caches of their own with the same contents.
    pub fn duplicate(&self) -> Result<Self> {
        let caches = self.caches.iter().map(KvCache::duplicate).collect::<Result<_>>()?;
        Ok(Self { caches, positions: self.positions.duplicate()?, angles: self.angles.clone() })
    }
}

/// Which sequences a recording continues: `tokens` each, from the sequence `first` on.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    pub first: usize,
    pub tokens: usize,
    /// The most positions that a token sees.
    pub longest: usize,
}

impl Batch {
    /// Tokens of one sequence, which has `longest` with them.
    pub fn prompt(sequence: usize, tokens: usize, longest: usize) -> Self {
        Self { first: sequence, tokens, longest }
    }
}

/// How steps choose the next tokens, which stay on the GPU as the next step's input.
pub(super) struct GpuChoice {
    pub options: SampleOptions,
    /// `[sequences, 2]`
    pub seeds: Tensor<u32>,
    pub changes: Option<GpuChanges>,
}

/// What changes the logits before.
pub(super) struct GpuChanges {
    pub penalties: Penalties,
    /// `[vocab]`
    pub bias: Tensor<f32>,
    /// `[sequences, vocab]`: kept by the steps themselves.
    pub counts: Tensor<u32>,
}

/// A recorded step of all sequences.
pub(super) struct Step {
    pub recording: Recording,
    /// `[sequences, vocab]`
    pub logits: Tensor<f32>,
}

/// Intermediate results of a layer, in buffers that all layers share.
pub(super) struct Scratch {
    /// The residual stream, `[rows, hidden]`.
    pub x: Tensor<f32>,
    normed: QuantizedActivations,
    qkv: Tensor<f32>,
    attended: Tensor<f32>,
    attended_q: QuantizedActivations,
    gate_up: Tensor<f32>,
    /// act(gate)·up, `[rows, intermediate]`, where a dispatch makes it of `x` at once.
    hidden: Tensor<f32>,
    gated: QuantizedActivations,
}

impl Scratch {
    fn rows(&self) -> usize {
        self.normed.tokens()
    }
}

impl GpuModel {
    /// Uploads the weights, layer by layer as they come.
    pub fn new(context: &Context, config: ModelConfig, host: HostEnds, layers: impl Iterator<Item = Result<HostLayer>>) -> Result<Self> {
        let vector = |values: &Vec<f32>| context.upload(values, [values.len()]);
        let ends = host.try_map(|dense| dense.upload(context), vector)?;
        // An embedding is large: it need not stay while layers are read.
        drop(host);
        let layers = layers.map(|layer| layer?.try_map(|matrix| matrix.upload(context), vector)).collect::<Result<_>>()?;
        Ok(Self { context: context.clone(), config, ends, layers })
    }

    /// Empty key-value caches, and what goes with them.
    pub(super) fn memory(&self, options: SessionOptions) -> Result<Memory> {
        let (context, c) = (&self.context, &self.config);
        let SessionOptions { sequences, capacity, cache } = options;
        let cache = |_| KvCache::new(context, c.attention(), sequences, capacity, cache);
        let caches = (0..c.layers).map(cache).collect::<Result<_>>()?;
        let angles = transformer::rope_angles(&c.rope_frequencies(), capacity);
        let angles = context.upload(&angles, [capacity, c.head_dim / 2, 2])?;
        Ok(Memory { caches, positions: Tensor::zeros(context, [sequences])?, angles })
    }

    /// Intermediate results of so many tokens.
    pub(super) fn scratch(&self, rows: usize) -> Result<Scratch> {
        let (c, context) = (&self.config, &self.context);
        let width = c.heads * c.head_dim;
        let normed = self.layout(c.hidden, |layer| layer.qkv.group().or(layer.gate_up.group()).is_some());
        let attended = self.layout(width, |layer| layer.output.group().is_some());
        let gated = self.layout(c.intermediate, |layer| layer.down.group().is_some());
        Ok(Scratch {
            x: Tensor::uninit(context, [rows, c.hidden])?,
            normed: QuantizedActivations::uninit(context, rows, c.hidden, normed)?,
            qkv: Tensor::uninit(context, [rows, c.attention().row()])?,
            attended: Tensor::uninit(context, [rows, width])?,
            attended_q: QuantizedActivations::uninit(context, rows, width, attended)?,
            gate_up: Tensor::uninit(context, [rows, 2 * c.intermediate])?,
            hidden: Tensor::uninit(context, [rows, c.intermediate])?,
            gated: QuantizedActivations::uninit(context, rows, c.intermediate, gated)?,
        })
    }

    /// The layout of activations for matrices of which some, or none, are scaled by groups.
    fn layout(&self, columns: usize, grouped: impl Fn(&GpuLayer) -> bool) -> Layout {
        match self.layers.iter().any(grouped) {
            true => Layout::Int8,
            false => bitnet::layout(columns, self.context.capabilities(), self.context.language()),
        }
    }

    /// Records one layer on the residual stream.
    pub(super) fn layer(&self, encoder: &mut Encoder, index: usize, memory: &Memory, batch: Batch, s: &Scratch) -> Result<()> {
        let (c, layer, cache) = (&self.config, &self.layers[index], &memory.caches[index]);
        let new = NewTokens { sequence: batch.first, run: batch.tokens, positions: &memory.positions };
        let norm = |gain| Some((gain, c.eps));
        linear(encoder, &s.x, norm(&layer.input_norm), &layer.qkv, &s.normed, Out::set(&s.qkv))?;
        transformer::rope_attention_into(encoder, &s.qkv, &new, &memory.angles, cache, batch.longest, &s.attended)?;
        linear(encoder, &s.attended, layer.attention_norm.as_ref().and_then(norm), &layer.output, &s.attended_q, Out::add(&s.x))?;
        let (ffn_norm, gated_norm) = (norm(&layer.post_norm), layer.gated_norm.as_ref().and_then(norm));
        if bitnet::norm_bitlinear_fuses(&self.context, s.rows(), &layer.gate_up) {
            bitnet::norm_bitlinear_gated_into(encoder, &s.x, ffn_norm, &layer.gate_up, c.gate(), &s.hidden)?;
            return linear(encoder, &s.hidden, gated_norm, &layer.down, &s.gated, Out::add(&s.x));
        }
        linear(encoder, &s.x, ffn_norm, &layer.gate_up, &s.normed, Out::set(&s.gate_up))?;
        bitnet::gate_quantize_into(encoder, &s.gate_up, c.gate(), gated_norm, &s.gated)?;
        bitnet::bitlinear_quantized_into(encoder, &s.gated, &layer.down, Out::add(&s.x))
    }

    /// Records the embedding and all layers; gives the residual stream.
    pub(super) fn hidden(&self, encoder: &mut Encoder, tokens: &Tensor<u32>, memory: &Memory, batch: Batch) -> Result<Tensor<f32>> {
        let scratch = self.scratch(tokens.len())?;
        transformer::embed_into(encoder, tokens, &self.ends.embedding, &scratch.x)?;
        for layer in 0..self.layers.len() {
            self.layer(encoder, layer, memory, batch, &scratch)?;
        }
        Ok(scratch.x)
    }

    /// Records the final norm and the head for rows `first..first + rows` of the residual stream.
    pub(super) fn logits(&self, encoder: &mut Encoder, x: &Tensor<f32>, first: usize, rows: usize) -> Result<Tensor<f32>> {
        let normed = Tensor::uninit(&self.context, [rows, self.config.hidden])?;
        transformer::rms_norm_into(encoder, x, first, &self.ends.norm, self.config.eps, &normed)?;
        transformer::dense_gemv(encoder, &normed, self.ends.head())
    }

    /// Records a step of all sequences, of up to `longest` tokens with it, from `tokens` `[sequences]`. With a choice, the tokens that are chosen take
    /// their place.
    pub(super) fn step(&self, tokens: &Tensor<u32>, memory: &Memory, choice: Option<&GpuChoice>, longest: usize) -> Result<Step> {
        let sequences = tokens.len();
        let mut encoder = self.context.encoder("decode");
        let x = self.hidden(&mut encoder, tokens, memory, Batch { first: 0, tokens: 1, longest })?;
        let logits = self.logits(&mut encoder, &x, 0, sequences)?;
        if let Some(choice) = choice {
            choose(&mut encoder, &logits, tokens, memory, choice)?;
        }
        Ok(Step { recording: encoder.finish(), logits })
    }
}

/// Norm, quantiser and BitLinear: in one dispatch where that is better, else by way of `xq`.
fn linear(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    xq: &QuantizedActivations,
    y: Out<'_, f32>,
) -> Result<()> {
    if bitnet::norm_bitlinear_fuses(encoder.context(), xq.tokens(), w) {
        return bitnet::norm_bitlinear_into(encoder, x, norm, w, y);
    }
    match norm {
        Some((gain, eps)) => bitnet::rms_norm_quantize_into(encoder, x, gain, eps, xq)?,
        None => bitnet::quantize_activations_into(encoder, x, xq)?,
    }
    bitnet::bitlinear_quantized_into(encoder, xq, w, y)
}

/// Records the choice of the tokens that follow `tokens`, in their place.
fn choose(encoder: &mut Encoder, logits: &Tensor<f32>, tokens: &Tensor<u32>, memory: &Memory, choice: &GpuChoice) -> Result<()> {
    if let Some(GpuChanges { penalties, bias, counts }) = &choice.changes {
        transformer::penalize(encoder, logits, tokens, counts, bias, penalties)?;
    }
    let draws = Draws { seeds: &choice.seeds, positions: &memory.positions };
    transformer::sample_into(encoder, logits, &draws, &choice.options, tokens)
}
