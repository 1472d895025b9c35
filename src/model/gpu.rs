//! The model on a GPU: every op of this crate, recorded.

use super::{
    LOGIT_ROWS,
    layers::{HostEnds, HostLayer},
};
use crate::{
    Context, DenseMatrix, Element, Encoder, Out, Recording, Result, Tensor, TernaryMatrix,
    bitnet::{self, Layout, QuantizedActivations},
    formats::ModelConfig,
    transformer::{self, KvCache, Places, TopK},
};
use std::sync::Arc;

/// Tokens of a prompt that are computed together: enough for the GEMM, few enough for the activations' memory.
const BATCH: usize = 512;

/// Context lengths at which a decoding step is recorded anew, with more shares of the attention: 128 and its doubles.
const FIRST_SPAN: usize = 128;

struct GpuLayer {
    input_norm: Tensor<f32>,
    qkv: TernaryMatrix,
    attention_norm: Option<Tensor<f32>>,
    output: TernaryMatrix,
    post_norm: Tensor<f32>,
    gate_up: TernaryMatrix,
    gated_norm: Option<Tensor<f32>>,
    down: TernaryMatrix,
}

pub(super) struct GpuModel {
    pub context: Context,
    pub config: ModelConfig,
    embedding: DenseMatrix,
    head: DenseMatrix,
    norm: Tensor<f32>,
    layers: Vec<GpuLayer>,
}

impl GpuModel {
    pub fn new(context: &Context, config: &ModelConfig, ends: &HostEnds) -> Result<Self> {
        let embedding = ends.embedding.upload(context)?;
        let head = ends.head.as_ref().map(|head| head.upload(context)).transpose()?;
        Ok(Self {
            context: context.clone(),
            config: config.clone(),
            head: head.unwrap_or_else(|| embedding.clone()),
            embedding,
            norm: vector(context, &ends.norm)?,
            layers: Vec::new(),
        })
    }

    pub fn push(&mut self, layer: &HostLayer) -> Result<()> {
        let context = &self.context;
        let optional = |norm: &Option<Vec<f32>>| norm.as_ref().map(|norm| vector(context, norm)).transpose();
        self.layers.push(GpuLayer {
            input_norm: vector(context, &layer.input_norm)?,
            qkv: layer.qkv.upload(context)?,
            attention_norm: optional(&layer.attention_norm)?,
            output: layer.output.upload(context)?,
            post_norm: vector(context, &layer.post_norm)?,
            gate_up: layer.gate_up.upload(context)?,
            gated_norm: optional(&layer.gated_norm)?,
            down: layer.down.upload(context)?,
        });
        Ok(())
    }

    /// The layout of activations for matrices of which some are scaled by groups, or none.
    fn layout(&self, columns: usize, grouped: impl Fn(&GpuLayer) -> bool) -> Layout {
        match self.layers.iter().any(grouped) {
            true => Layout::Int8,
            false => bitnet::layout(columns, self.context.capabilities(), self.context.language()),
        }
    }

    /// Records one layer on the residual stream `scratch.x`.
    fn layer(&self, encoder: &mut Encoder, layer: &GpuLayer, cache: &KvCache, place: &Place<'_>, scratch: &Scratch) -> Result<()> {
        let (c, s) = (&self.config, scratch);
        bitnet::rms_norm_quantize_into(encoder, &s.x, &layer.input_norm, c.eps, &s.normed)?;
        bitnet::bitlinear_quantized_into(encoder, &s.normed, &layer.qkv, &s.qkv)?;
        transformer::rope(encoder, &s.qkv, &place.tokens, place.angles, cache)?;
        transformer::attention(encoder, &s.qkv, &place.tokens, cache, place.splits, &s.attended)?;
        match &layer.attention_norm {
            Some(gain) => bitnet::rms_norm_quantize_into(encoder, &s.attended, gain, c.eps, &s.attended_q)?,
            None => bitnet::quantize_activations_into(encoder, &s.attended, &s.attended_q)?,
        }
        bitnet::bitlinear_quantized_into(encoder, &s.attended_q, &layer.output, Out::add(&s.x))?;
        bitnet::rms_norm_quantize_into(encoder, &s.x, &layer.post_norm, c.eps, &s.normed)?;
        bitnet::bitlinear_quantized_into(encoder, &s.normed, &layer.gate_up, &s.gate_up)?;
        let norm = layer.gated_norm.as_ref().map(|gain| (gain, c.eps));
        bitnet::gate_quantize_into(encoder, &s.gate_up, c.gate(), norm, &s.gated)?;
        bitnet::bitlinear_quantized_into(encoder, &s.gated, &layer.down, Out::add(&s.x))
    }

    /// Records the final norm and the head for rows `first..first + rows` of the residual stream.
    fn logits(&self, encoder: &mut Encoder, x: &Tensor<f32>, first: usize, rows: usize) -> Result<Tensor<f32>> {
        let normed = Tensor::uninit(&self.context, [rows, self.head.padded()])?;
        transformer::rms_norm(encoder, x, first, &self.norm, self.config.eps, &normed)?;
        transformer::dense_gemv(encoder, &normed, &self.head)
    }

    /// A layer's output for hidden states `[tokens, hidden]` at the beginning of a text.
    pub async fn layer_output(&self, layer: usize, hidden: &[f32]) -> Result<Vec<f32>> {
        let tokens = hidden.len() / self.config.hidden;
        let session = GpuSession::new(self, 1, tokens.max(1), Element::F32)?;
        let scratch = Scratch::new(self, tokens)?;
        scratch.x.write(hidden)?;
        let mut encoder = self.context.encoder("layer");
        self.layer(&mut encoder, &self.layers[layer], &session.caches[layer], &session.place(0, tokens, 1), &scratch)?;
        encoder.submit()?;
        scratch.x.read().await
    }
}

fn vector(context: &Context, values: &[f32]) -> Result<Tensor<f32>> {
    context.upload(values, [values.len()])
}

/// Where the tokens of a recording stand, and what attention needs to know of it.
struct Place<'a> {
    tokens: Places<'a>,
    angles: &'a Tensor<f32>,
    splits: usize,
}

/// What layers write in turn; all of them use the same.
struct Scratch {
    x: Tensor<f32>,
    normed: QuantizedActivations,
    qkv: Tensor<f32>,
    attended: Tensor<f32>,
    attended_q: QuantizedActivations,
    gate_up: Tensor<f32>,
    gated: QuantizedActivations,
}

impl Scratch {
    fn new(model: &GpuModel, tokens: usize) -> Result<Self> {
        let (c, context) = (&model.config, &model.context);
        let width = c.heads * c.head_dim;
        let normed = model.layout(c.hidden, |layer| layer.qkv.group().or(layer.gate_up.group()).is_some());
        let attended = model.layout(width, |layer| layer.output.group().is_some());
        let gated = model.layout(c.intermediate, |layer| layer.down.group().is_some());
        Ok(Self {
            x: Tensor::uninit(context, [tokens, c.hidden])?,
            normed: QuantizedActivations::uninit(context, tokens, c.hidden, normed)?,
            qkv: Tensor::uninit(context, [tokens, c.attention().row()])?,
            attended: Tensor::uninit(context, [tokens, width])?,
            attended_q: QuantizedActivations::uninit(context, tokens, width, attended)?,
            gate_up: Tensor::uninit(context, [tokens, 2 * c.intermediate])?,
            gated: QuantizedActivations::uninit(context, tokens, c.intermediate, gated)?,
        })
    }
}

/// What a decoding step gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// The most likely token, which stays on the GPU as the next step's input.
    Greedy,
    /// So many of the largest logits.
    Top(usize),
    /// All logits.
    All,
}

/// A recorded step of all sequences.
struct Step {
    want: Want,
    /// The longest context that its shares of the attention are meant for.
    span: usize,
    recording: Recording,
    logits: Tensor<f32>,
    top: Option<TopK>,
}

/// Key-value caches, and where the sequences stand.
pub(super) struct GpuSession {
    caches: Vec<KvCache>,
    positions: Tensor<u32>,
    angles: Tensor<f32>,
    /// The last token of every sequence.
    tokens: Tensor<u32>,
    pub lengths: Vec<usize>,
    step: Option<Arc<Step>>,
}

impl GpuSession {
    pub fn new(model: &GpuModel, slots: usize, capacity: usize, element: Element) -> Result<Self> {
        let (context, c) = (&model.context, &model.config);
        let cache = |_| KvCache::new(context, c.attention(), slots, capacity, element);
        let caches = (0..c.layers).map(cache).collect::<Result<_>>()?;
        let angles = transformer::rope_angles(&c.rope_frequencies(), capacity);
        Ok(Self {
            caches,
            positions: Tensor::zeros(context, [slots])?,
            angles: context.upload(&angles, [capacity, c.head_dim / 2, 2])?,
            tokens: Tensor::zeros(context, [slots])?,
            lengths: vec![0; slots],
            step: None,
        })
    }

    fn place(&self, slot: usize, run: usize, splits: usize) -> Place<'_> {
        Place { tokens: Places { slot, run, positions: &self.positions }, angles: &self.angles, splits }
    }

    fn write_positions(&self) -> Result<()> {
        let positions: Vec<_> = self.lengths.iter().map(|&length| length as u32).collect();
        self.positions.write(&positions)
    }

    /// Appends tokens to a sequence, which has room for them, in batches; after each, `then` may record more on the residual stream of its
    /// tokens.
    fn extend(
        &mut self,
        model: &GpuModel,
        slot: usize,
        ids: &[u32],
        mut then: impl FnMut(&mut Encoder, &Tensor<f32>, usize) -> Result<()>,
    ) -> Result<()> {
        let before = self.lengths[slot];
        let all = ids.chunks(BATCH).try_for_each(|ids| {
            let scratch = Scratch::new(model, ids.len())?;
            let tokens = model.context.upload(ids, [ids.len()])?;
            self.write_positions()?;
            let mut encoder = model.context.encoder("prefill");
            self.record(model, &mut encoder, &tokens, &scratch, &self.place(slot, ids.len(), 1))?;
            then(&mut encoder, &scratch.x, ids.len())?;
            encoder.submit()?;
            self.lengths[slot] += ids.len();
            Ok(())
        });
        // All of them or none.
        all.inspect_err(|_| self.lengths[slot] = before)
    }

    /// Records the embedding and all layers.
    fn record(&self, model: &GpuModel, encoder: &mut Encoder, tokens: &Tensor<u32>, scratch: &Scratch, place: &Place<'_>) -> Result<()> {
        transformer::embed_into(encoder, tokens, &model.embedding, &scratch.x)?;
        for (layer, cache) in model.layers.iter().zip(&self.caches) {
            model.layer(encoder, layer, cache, place, scratch)?;
        }
        Ok(())
    }

    /// Appends tokens; gives the logits after the last of them.
    pub async fn prefill(&mut self, model: &GpuModel, slot: usize, ids: &[u32]) -> Result<Vec<f32>> {
        let mut last = None;
        self.extend(model, slot, ids, |encoder, x, tokens| {
            last = Some(model.logits(encoder, x, tokens - 1, 1)?);
            Ok(())
        })?;
        match last {
            Some(logits) => logits.read().await,
            None => Ok(Vec::new()),
        }
    }

    /// Appends tokens; hands on the logits after each, some rows at a time.
    pub async fn all_logits(&mut self, model: &GpuModel, slot: usize, ids: &[u32], rows: &mut (dyn FnMut(Vec<f32>) + Send)) -> Result<()> {
        for ids in ids.chunks(LOGIT_ROWS) {
            let mut logits = None;
            self.extend(model, slot, ids, |encoder, x, tokens| {
                logits = Some(model.logits(encoder, x, 0, tokens)?);
                Ok(())
            })?;
            if let Some(logits) = logits {
                rows(logits.read().await?);
            }
        }
        Ok(())
    }

    /// The recording of a prompt from the beginning of a text, and its last logits.
    pub fn record_prompt(&self, model: &GpuModel, ids: &[u32]) -> Result<(Recording, Tensor<f32>)> {
        let scratch = Scratch::new(model, ids.len())?;
        let tokens = model.context.upload(ids, [ids.len()])?;
        self.write_positions()?;
        let mut encoder = model.context.encoder("prompt");
        self.record(model, &mut encoder, &tokens, &scratch, &self.place(0, ids.len(), 1))?;
        let logits = model.logits(&mut encoder, &scratch.x, ids.len().saturating_sub(1), 1)?;
        Ok((encoder.finish(), logits))
    }

    /// The recorded step for what is wanted at the present lengths.
    fn step(&mut self, model: &GpuModel, want: Want) -> Result<Arc<Step>> {
        let longest = self.lengths.iter().copied().max().unwrap_or(0) + 1;
        if let Some(step) = &self.step
            && step.want == want
            && longest <= step.span
            && step.span <= FIRST_SPAN.max(2 * longest)
        {
            return Ok(step.clone());
        }
        let span = longest.next_power_of_two().max(FIRST_SPAN);
        let slots = self.lengths.len();
        let scratch = Scratch::new(model, slots)?;
        let mut encoder = model.context.encoder("decode");
        let splits = transformer::attention_splits(slots * model.config.kv_heads, span);
        self.record(model, &mut encoder, &self.tokens, &scratch, &self.place(0, 1, splits))?;
        let logits = model.logits(&mut encoder, &scratch.x, 0, slots)?;
        let top = match want {
            Want::Greedy => Some(transformer::top_k(&mut encoder, &logits, 1, Some(&self.tokens.reshape([slots, 1])?))?),
            Want::Top(k) => Some(transformer::top_k(&mut encoder, &logits, k, None)?),
            Want::All => None,
        };
        let step = Arc::new(Step { want, span, recording: encoder.finish(), logits, top });
        self.step = Some(step.clone());
        Ok(step)
    }

    /// Sets the last token of every sequence.
    pub fn write_tokens(&self, tokens: &[u32]) -> Result<()> {
        self.tokens.write(tokens)
    }

    /// Submits a greedy step of all sequences from their last tokens, which may still be on their way; gives the tokens that follow.
    pub fn step_greedy(&mut self, model: &GpuModel) -> Result<impl Future<Output = Result<Vec<u32>>> + Send + 'static> {
        let step = self.step(model, Want::Greedy)?;
        self.write_positions()?;
        let tokens = step.recording.submit_read(&self.tokens)?;
        self.lengths.iter_mut().for_each(|length| *length += 1);
        Ok(tokens)
    }

    /// A step of all sequences: (id, logit) of every sequence's `k` largest logits, largest first.
    pub async fn step_top(&mut self, model: &GpuModel, k: usize) -> Result<Vec<Vec<(u32, f32)>>> {
        let step = self.step(model, Want::Top(k))?;
        self.write_positions()?;
        step.recording.submit()?;
        self.lengths.iter_mut().for_each(|length| *length += 1);
        let Some(top) = &step.top else { return Ok(Vec::new()) };
        let (ids, logits) = (top.ids.read(), top.logits.read());
        let (ids, logits) = (ids.await?, logits.await?);
        let rows = ids.chunks(k).zip(logits.chunks(k));
        Ok(rows.map(|(ids, logits)| ids.iter().copied().zip(logits.iter().copied()).collect()).collect())
    }

    /// A step of all sequences: their logits.
    pub async fn step_all(&mut self, model: &GpuModel) -> Result<Vec<f32>> {
        let step = self.step(model, Want::All)?;
        self.write_positions()?;
        let logits = step.recording.submit_read(&step.logits)?.await?;
        self.lengths.iter_mut().for_each(|length| *length += 1);
        Ok(logits)
    }
}
