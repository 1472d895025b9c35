//! The model on the processor: the CPU twins of the GPU's kernels, on all cores.

use super::{
    LOGIT_ROWS,
    layers::{HostEnds, HostLayer},
};
use crate::{
    Result, bitnet,
    formats::ModelConfig,
    transformer::{self, HostKvCache},
};

pub(super) struct CpuModel {
    pub config: ModelConfig,
    pub ends: HostEnds,
    pub layers: Vec<HostLayer>,
}

/// Key-value caches of every sequence, by layer.
pub(super) struct CpuSession {
    caches: Vec<Vec<HostKvCache>>,
    angles: Vec<f32>,
}

impl CpuSession {
    pub fn new(model: &CpuModel, slots: usize, capacity: usize) -> Result<Self> {
        let cache = HostKvCache::new(model.config.attention())?;
        let angles = transformer::rope_angles(&model.config.rope_frequencies(), capacity);
        Ok(Self { caches: vec![vec![cache; model.config.layers]; slots], angles })
    }

    pub fn length(&self, slot: usize) -> usize {
        self.caches[slot].first().map_or(0, HostKvCache::len)
    }

    pub fn truncate(&mut self, slot: usize, tokens: usize) {
        self.caches[slot].iter_mut().for_each(|cache| cache.truncate(tokens));
    }

    /// Appends tokens; gives their residual stream `[tokens, hidden]`.
    fn extend(&mut self, model: &CpuModel, slot: usize, ids: &[u32]) -> Result<Vec<f32>> {
        let mut x = transformer::embed_cpu(ids, &model.ends.embedding)?;
        for (layer, cache) in model.layers.iter().zip(&mut self.caches[slot]) {
            model.layer(layer, &mut x, &self.angles, cache)?;
        }
        Ok(x)
    }

    /// Appends tokens; gives the logits after the last of them.
    pub fn prefill(&mut self, model: &CpuModel, slot: usize, ids: &[u32]) -> Result<Vec<f32>> {
        let x = self.extend(model, slot, ids)?;
        model.logits(&x[x.len().saturating_sub(model.config.hidden)..])
    }

    /// Appends tokens; hands on the logits after each, some rows at a time.
    pub fn all_logits(&mut self, model: &CpuModel, slot: usize, ids: &[u32], rows: &mut dyn FnMut(Vec<f32>)) -> Result<()> {
        let x = self.extend(model, slot, ids)?;
        x.chunks(LOGIT_ROWS * model.config.hidden).try_for_each(|x| model.logits(x).map(&mut *rows))
    }
}

impl CpuModel {
    fn layer(&self, layer: &HostLayer, x: &mut [f32], angles: &[f32], cache: &mut HostKvCache) -> Result<()> {
        let c = &self.config;
        let tokens = x.len() / c.hidden;
        let normed = bitnet::rms_norm_quantize_cpu(x, tokens, &layer.input_norm, c.eps)?;
        let mut qkv = bitnet::bitlinear_quantized_cpu(&normed, &layer.qkv)?;
        transformer::rope_cpu(&mut qkv, angles, cache)?;
        let attended = transformer::attention_cpu(&qkv, cache)?;
        let attended = match &layer.attention_norm {
            Some(gain) => bitnet::rms_norm_quantize_cpu(&attended, tokens, gain, c.eps)?,
            None => bitnet::quantize_activations_cpu(&attended, tokens, c.heads * c.head_dim)?,
        };
        add(x, &bitnet::bitlinear_quantized_cpu(&attended, &layer.output)?);
        let normed = bitnet::rms_norm_quantize_cpu(x, tokens, &layer.post_norm, c.eps)?;
        let gate_up = bitnet::bitlinear_quantized_cpu(&normed, &layer.gate_up)?;
        let norm = layer.gated_norm.as_ref().map(|gain| (gain.as_slice(), c.eps));
        let gated = bitnet::gate_quantize_cpu(&gate_up, c.intermediate, c.gate(), norm)?;
        add(x, &bitnet::bitlinear_quantized_cpu(&gated, &layer.down)?);
        Ok(())
    }

    fn logits(&self, x: &[f32]) -> Result<Vec<f32>> {
        let normed = transformer::rms_norm_cpu(x, &self.ends.norm, self.config.eps)?;
        transformer::dense_gemv_cpu(&normed, self.ends.head.as_ref().unwrap_or(&self.ends.embedding))
    }

    /// A layer's output for hidden states `[tokens, hidden]` at the beginning of a text.
    pub fn layer_output(&self, layer: usize, hidden: &[f32]) -> Result<Vec<f32>> {
        let mut x = hidden.to_vec();
        let session = CpuSession::new(self, 1, hidden.len() / self.config.hidden)?;
        let mut cache = HostKvCache::new(self.config.attention())?;
        self.layer(&self.layers[layer], &mut x, &session.angles, &mut cache)?;
        Ok(x)
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
