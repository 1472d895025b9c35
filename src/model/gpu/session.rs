//! Sequences on a GPU. A prompt is recorded and run in batches; a decoding step is recorded once for all sequences and run again and again.

use super::graph::{Batch, GpuChanges, GpuChoice, GpuModel, Memory, Step};
use crate::{
    error::Result,
    formats::ModelConfig,
    gpu::{context::Context, recording::Recording, tensor::Tensor},
    model::engine::{Changes, Choice, Engine, EngineSession, Pending, SessionOptions, unchosen},
    ops::transformer::{HostKvCache, SampleOptions},
};
use std::sync::Arc;

/// Tokens of a prompt that are computed together: enough for the GEMM, few enough for the activations' memory.
const BATCH: usize = 512;

/// Context lengths at which a decoding step is recorded anew, with more shares of the attention: 64 and its doubles.
const FIRST_SPAN: usize = 64;

/// Steps beyond the one that is awaited, so that the GPU does not wait while a token is read back.
const AHEAD: usize = 3;

struct GpuSession {
    model: Arc<GpuModel>,
    memory: Memory,
    /// `[sequences]`: the input of the next step.
    tokens: Tensor<u32>,
    lengths: Vec<usize>,
    choice: Option<GpuChoice>,
    step: Option<CachedStep>,
}

/// A recorded step, and what it was recorded for.
struct CachedStep {
    /// Does it choose the next tokens?
    chooses: bool,
    /// The longest context that its attention is recorded for.
    span: usize,
    step: Arc<Step>,
}

impl Engine for GpuModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn context(&self) -> Option<&Context> {
        Some(&self.context)
    }

    fn session(self: Arc<Self>, options: SessionOptions) -> Result<Box<dyn EngineSession>> {
        let memory = self.memory(options)?;
        let tokens = Tensor::zeros(&self.context, [options.sequences])?;
        Ok(Box::new(GpuSession { model: self, memory, tokens, lengths: vec![0; options.sequences], choice: None, step: None }))
    }
}

impl GpuSession {
    /// Tells the GPU how many tokens every sequence has.
    fn write_positions(&self) -> Result<()> {
        let positions: Vec<_> = self.lengths.iter().map(|&length| length as u32).collect();
        self.memory.positions.write(&positions)
    }

    /// The recorded step for the present lengths.
    fn recorded(&mut self, chooses: bool) -> Result<Arc<Step>> {
        let longest = self.lengths.iter().copied().max().unwrap_or(0) + 1;
        if let Some(cached) = &self.step
            && cached.chooses == chooses
            && longest <= cached.span
            && cached.span <= FIRST_SPAN.max(2 * longest)
        {
            return Ok(cached.step.clone());
        }
        let span = longest.next_power_of_two().max(FIRST_SPAN);
        let choice = if chooses { Some(self.choice.as_ref().ok_or_else(unchosen)?) } else { None };
        let step = Arc::new(self.model.step(&self.tokens, &self.memory, choice, span)?);
        self.step = Some(CachedStep { chooses, span, step: step.clone() });
        Ok(step)
    }

    /// Runs a step of all sequences: `submit` submits its recording.
    fn run<T>(&mut self, tokens: Option<&[u32]>, chooses: bool, submit: impl FnOnce(&Step) -> Result<T>) -> Result<T> {
        if let Some(tokens) = tokens {
            self.tokens.write(tokens)?;
        }
        let step = self.recorded(chooses)?;
        self.write_positions()?;
        let result = submit(&step)?;
        self.lengths.iter_mut().for_each(|length| *length += 1);
        Ok(result)
    }
}

impl EngineSession for GpuSession {
    fn len(&self, sequence: usize) -> usize {
        self.lengths[sequence]
    }

    fn truncate(&mut self, sequence: usize, tokens: usize) {
        self.lengths[sequence] = self.lengths[sequence].min(tokens);
    }

    fn fork(&self) -> Result<Box<dyn EngineSession>> {
        let (model, memory) = (self.model.clone(), self.memory.duplicate()?);
        Ok(Box::new(Self { model, memory, tokens: self.tokens.duplicate()?, lengths: self.lengths.clone(), choice: None, step: None }))
    }

    fn read(&self) -> Result<Pending<Vec<Vec<HostKvCache>>>> {
        let (caches, lengths) = (self.memory.caches.clone(), self.lengths.clone());
        Ok(Box::pin(async move {
            // One after another: staging memory for one layer will do.
            let mut layers = Vec::new();
            for cache in caches {
                layers.push(cache.read(&lengths)?.await?);
            }
            Ok(layers)
        }))
    }

    fn write(&mut self, layers: Vec<Vec<HostKvCache>>) -> Result<()> {
        for (cache, layer) in self.memory.caches.iter().zip(&layers) {
            cache.write(layer)?;
            self.lengths = layer.iter().map(HostKvCache::len).collect();
        }
        Ok(())
    }

    fn batch(&self) -> usize {
        BATCH
    }

    fn extend(&mut self, sequence: usize, ids: &[u32], rows: usize) -> Result<Pending<Vec<f32>>> {
        let model = &self.model;
        self.write_positions()?;
        let tokens = model.context.upload(ids, [ids.len()])?;
        let mut encoder = model.context.encoder("prefill");
        let x =
            model.hidden(&mut encoder, &tokens, &self.memory, Batch::prompt(sequence, ids.len(), self.lengths[sequence] + ids.len()))?;
        let logits = (rows > 0).then(|| model.logits(&mut encoder, &x, ids.len() - rows, rows)).transpose()?;
        let submission = encoder.submit()?;
        self.lengths[sequence] += ids.len();
        Ok(match logits {
            Some(logits) => Box::pin(logits.read()),
            None => Box::pin(async move { submission.await.map(|()| Vec::new()) }),
        })
    }

    fn step(&mut self, tokens: &[u32]) -> Result<Pending<Vec<f32>>> {
        let logits = self.run(Some(tokens), false, |step| step.recording.submit_read(&step.logits))?;
        Ok(Box::pin(logits))
    }

    fn choose_by(&mut self, choice: Choice) -> Result<()> {
        let (context, sequences, vocab) = (&self.model.context, self.lengths.len(), self.model.config.vocab);
        let seeds: Vec<u32> = choice.seeds.iter().flat_map(|&seed| [seed as u32, (seed >> 32) as u32]).collect();
        if let (Some(before), None) = (&self.choice, &choice.changes)
            && before.changes.is_none()
            && before.options == choice.options
        {
            // The recorded step is as good as another.
            return before.seeds.write(&seeds);
        }
        let changes = |Changes { penalties, bias, counts }: Changes| -> Result<_> {
            Ok(GpuChanges { penalties, bias: context.upload(&bias, [vocab])?, counts: context.upload(&counts, [sequences, vocab])? })
        };
        let (seeds, changes) = (context.upload(&seeds, [sequences, 2])?, choice.changes.map(changes).transpose()?);
        self.choice = Some(GpuChoice { options: choice.options, seeds, changes });
        self.step = None;
        Ok(())
    }

    fn step_next(&mut self, tokens: Option<&[u32]>) -> Result<Pending<Vec<u32>>> {
        let next = self.tokens.clone();
        let ids = self.run(tokens, true, |step| step.recording.submit_read(&next))?;
        Ok(Box::pin(ids))
    }

    fn steps_ahead(&self) -> usize {
        AHEAD
    }

    fn layer_output(&mut self, layer: usize, hidden: &[f32]) -> Result<Pending<Vec<f32>>> {
        let tokens = hidden.len() / self.model.config.hidden;
        let scratch = self.model.scratch(tokens)?;
        scratch.x.write(hidden)?;
        let mut encoder = self.model.context.encoder("layer");
        self.model.layer(&mut encoder, layer, &self.memory, Batch::prompt(0, tokens, tokens), &scratch)?;
        encoder.submit()?;
        Ok(Box::pin(scratch.x.read()))
    }

    fn record(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)> {
        let model = &self.model;
        self.write_positions()?;
        let tokens = model.context.upload(ids, [ids.len()])?;
        let mut encoder = model.context.encoder("prompt");
        let x = model.hidden(&mut encoder, &tokens, &self.memory, Batch::prompt(0, ids.len(), self.lengths[0] + ids.len()))?;
        let logits = model.logits(&mut encoder, &x, ids.len() - 1, 1)?;
        Ok((encoder.finish(), logits))
    }

    fn record_step(&mut self, past: usize) -> Result<Recording> {
        self.memory.positions.write(&vec![past as u32; self.lengths.len()])?;
        self.choose_by(Choice { options: SampleOptions::default().temperature(0.0), seeds: vec![0; self.lengths.len()], changes: None })?;
        Ok(self.model.step(&self.tokens, &self.memory, self.choice.as_ref(), past + 1)?.recording)
    }
}
