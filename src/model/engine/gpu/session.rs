//! Sequences on a GPU. What appends to them is recorded; a short step is kept, and run again and
//! again.

use super::{
    graph::{GpuModel, GpuOutput, GpuSampler, Input, SamplerFeatures, Step, StepRequest, Submit},
    kept::KeptStates,
    memory::{LayerMemory, Memory},
    step::{CachedStep, StepOutput, StepShape},
};
use crate::{
    cpu::threads::on_all_cores,
    error::Result,
    formats::ModelConfig,
    gpu::{context::Context, recording::Recording, tensor::Tensor},
    model::engine::{
        interface::{
            Engine, EngineSession, ModelPart, Offloaded, Pending, SessionOptions, unchosen,
        },
        sampling_plan::SamplingPlan,
    },
    ops::transformer::{HostKvCache, SampleOptions},
    spans::span,
};
use std::sync::Arc;

/// Context lengths at which a step is recorded anew, with more KV splits of the attention: 64 and its
/// doubles.
pub(super) const FIRST_SPAN: usize = 64;

/// Steps beyond the one that is awaited, so that the GPU does not wait while a token is read back.
pub(super) const AHEAD: usize = 3;

/// The most tokens, and rows of logits, of a step that is kept; and how many such steps are.
pub(super) const SHORT: usize = 64;
pub(super) const FEW_ROWS: usize = 16;
pub(super) const MOST_STEPS: usize = 8;

/// Sequences on a GPU: of a model, or of a part of one.
pub(super) struct GpuSession {
    model: Arc<GpuModel>,
    memory: Memory,
    /// The input of the next step.
    tokens: Tensor<u32>,
    /// That of layers after others, which are elsewhere.
    stream: Option<Tensor<f32>>,
    /// `[sequences, 2]`: see [`Input::runs`].
    runs: Tensor<u32>,
    /// The first of these, when all that was submitted has run.
    counted: Vec<[u32; 2]>,
    lengths: Vec<usize>,
    /// What recurrent layers keep to forget tokens.
    kept: Option<KeptStates>,
    sampler: Option<GpuSampler>,
    /// The one that was used last is the last.
    steps: Vec<CachedStep>,
}

impl Engine for GpuModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn contexts(&self) -> Vec<&Context> {
        vec![&self.app_context]
    }

    fn session(self: Arc<Self>, options: SessionOptions) -> Result<Box<dyn EngineSession>> {
        Ok(Box::new(GpuSession::empty(self, options)?))
    }

    fn parts(&self, options: SessionOptions) -> Result<Vec<ModelPart>> {
        let (context, layers) = (self.app_context.clone(), 0..self.config.layers);
        Ok(vec![ModelPart { context, layers, footprint: self.footprint(options)? }])
    }

    fn offloaded(&self) -> Offloaded {
        self.streamed.offloaded()
    }

    fn warm_up(&self, options: SessionOptions) -> Result<Pending<()>> {
        let kernels = self.kernels(options)?;
        let submission = on_all_cores(|| self.context.compile(&kernels))?;
        Ok(Box::pin(async { submission.await }))
    }
}

impl GpuModel {
    /// A kind of step: of a part that other layers follow, the same whatever is wanted of them.
    pub(super) fn kind(&self, sequences: usize, run: usize, output: StepRequest) -> StepShape {
        StepShape {
            sequences,
            run,
            output: if self.ends.head.is_some() { output } else { StepRequest::Logits(0) },
            keeps: false,
        }
    }
}

impl GpuSession {
    /// Empty sequences.
    pub fn empty(model: Arc<GpuModel>, options: SessionOptions) -> Result<Self> {
        let memory = model.memory(options)?;
        Self::new(model, memory, vec![0; options.sequences])
    }

    pub(super) fn new(model: Arc<GpuModel>, memory: Memory, lengths: Vec<usize>) -> Result<Self> {
        let most = lengths.len().max(model.batch);
        let tokens = Tensor::zeros(&model.context, [most])?;
        let stream = model.ends.embedding.is_none().then(|| model.stream(most)).transpose()?;
        let runs = Tensor::zeros(&model.context, [lengths.len(), 2])?;
        Ok(Self {
            model,
            memory,
            tokens,
            stream,
            runs,
            counted: Vec::new(),
            lengths,
            kept: None,
            sampler: None,
            steps: Vec::new(),
        })
    }

    /// Another with the same sequences.
    pub fn duplicate(&self) -> Result<Self> {
        Self::new(self.model.clone(), self.memory.duplicate()?, self.lengths.clone())
    }

    /// Has sequences be as long as is known elsewhere: for a part of a model, whose steps may not
    /// all have come so far.
    pub fn set_len(&mut self, sequence: usize, tokens: usize) {
        self.lengths[sequence] = tokens;
        self.kept.iter_mut().for_each(|kept| kept.shorten(sequence, tokens));
    }

    fn is_recurrent(&self) -> bool {
        self.model.config.hybrid.is_some()
    }

    /// Returns whether such a step counts its tokens itself. It can then be submitted again without
    /// a write.
    fn advances(&self, kind: StepShape) -> bool {
        kind.run == 1 && kind.output == StepRequest::Next(1) && self.stream.is_none()
    }

    /// The input of a step of this many sequences, of up to `longest` tokens with it.
    fn input(&self, kind: StepShape, longest: usize) -> Result<Input> {
        let StepShape { sequences, run, .. } = kind;
        let (tokens, runs) =
            (self.tokens.beginning([sequences * run])?, self.runs.beginning([sequences, 2])?);
        let stream = self
            .stream
            .as_ref()
            .map(|x| x.beginning([sequences * run, self.model.config.hidden]))
            .transpose()?;
        let kept = self.kept.as_ref().filter(|_| kind.keeps).map(KeptStates::inputs);
        Ok(Input { tokens, run, runs, advances: self.advances(kind), longest, stream, kept })
    }

    /// What a step of a kind has to have of a choice of tokens.
    pub(super) fn features(&self, kind: StepShape) -> SamplerFeatures {
        let sampler = self.sampler.as_ref().filter(|_| matches!(kind.output, StepRequest::Next(_)));
        sampler.map_or_else(SamplerFeatures::default, |sampler| sampler.features)
    }

    /// Records a step, with what it needs of the choice of tokens, or more.
    pub(super) fn record_kind(
        &self,
        kind: StepShape,
        features: SamplerFeatures,
        longest: usize,
        mode: Submit,
    ) -> Result<Step> {
        let sampler = self.sampler.as_ref().map(|sampler| (sampler, features));
        self.model.step(&self.memory, &self.input(kind, longest)?, kind.output, sampler, mode)
    }

    /// The recorded step of a kind that has tokens see up to `longest` positions, and before it how
    /// many of its dispatches are submitted already, where it was recorded just now.
    fn recorded(&mut self, kind: StepShape, longest: usize) -> Result<(Option<usize>, Arc<Step>)> {
        let (StepRequest::Logits(rows) | StepRequest::States(rows) | StepRequest::Next(rows)) =
            kind.output;
        let features = self.features(kind);
        if kind.sequences * kind.run > SHORT || kind.sequences * rows > FEW_ROWS {
            let step = self.record_kind(kind, features, longest, Submit::Once)?;
            return Ok((Some(step.begun), Arc::new(step)));
        }
        let spans = |own: &CachedStep| {
            own.kind == kind && longest <= own.span && own.span <= FIRST_SPAN.max(2 * longest)
        };
        let found = self.steps.iter().position(spans).map(|at| self.steps.remove(at));
        let (begun, cached) = match found {
            Some(cached) if cached.features.or(features) == cached.features => (None, cached),
            found => {
                // Who needed what it has comes again.
                let features = found.map_or(features, |cached| cached.features.or(features));
                // One of this kind for another span is not wanted again soon.
                self.steps.retain(|cached| cached.kind != kind);
                if self.steps.len() == MOST_STEPS {
                    self.steps.remove(0);
                }
                let span = longest.next_power_of_two().max(FIRST_SPAN);
                let step = self.record_kind(kind, features, span, Submit::Now)?;
                (Some(step.begun), CachedStep { kind, span, features, step: Arc::new(step) })
            }
        };
        let step = cached.step.clone();
        self.steps.push(cached);
        Ok((begun, step))
    }

    /// Has a step ready that appends `tokens` `[sequences, run]` to these sequences, or one that
    /// the step before this one gives to each; of a part after others, what `stream`
    /// `[sequences · run, hidden]` they gave. Whoever gets it submits it, but for the dispatches
    /// that are submitted already.
    fn prepare(
        &mut self,
        sequences: &[usize],
        tokens: Option<&[u32]>,
        stream: &[f32],
        output: StepRequest,
    ) -> Result<(Option<usize>, Arc<Step>)> {
        let run = tokens.map_or(1, |tokens| tokens.len() / sequences.len().max(1));
        let kept = self.kept.as_ref().filter(|kept| kept.is_next(sequences, &self.lengths, run));
        let kind =
            StepShape { keeps: kept.is_some(), ..self.model.kind(sequences.len(), run, output) };
        let runs: Vec<[u32; 2]> = sequences
            .iter()
            .map(|&sequence| [sequence as u32, self.lengths[sequence] as u32])
            .collect();
        let longest = runs.iter().map(|run| run[1] as usize).max().unwrap_or(0) + run;
        let input = self.input(kind, longest)?;
        if let Some(tokens) = tokens {
            input.tokens.write(tokens)?;
        }
        input.stream.as_ref().map_or(Ok(()), |x| x.write(stream))?;
        // In a row of steps, each finds them as the one before left them.
        let begin: Vec<[u32; 2]> = runs
            .iter()
            .map(|&[sequence, past]| [sequence, past.wrapping_sub(self.advances(kind).into())])
            .collect();
        if begin != self.counted {
            input.runs.write(begin.as_flattened())?;
        }
        // Unknown, should it fail.
        self.counted.clear();
        let recorded = self.recorded(kind, longest);
        if recorded.is_err() && self.is_recurrent() {
            // Some recurrent layers may have seen the tokens, and others not.
            sequences.iter().for_each(|&sequence| self.set_len(sequence, 0));
        }
        let recorded = recorded?;
        if let Some(kept) = self.kept.as_mut().filter(|_| kind.keeps) {
            kept.tokens = run;
        }
        self.counted = runs;
        sequences.iter().for_each(|&sequence| self.lengths[sequence] += run);
        Ok(recorded)
    }

    /// Submits a step, as [`GpuSession::prepare`] has it ready.
    pub fn submit(
        &mut self,
        sequences: &[usize],
        tokens: Option<&[u32]>,
        stream: &[f32],
        output: StepRequest,
    ) -> Result<Pending<StepOutput>> {
        span!(
            "step",
            sequences = sequences.len(),
            tokens = tokens.map_or(sequences.len(), <[u32]>::len)
        );
        let (begun, step) = self.prepare(sequences, tokens, stream, output)?;
        // What comes without tokens is submitted behind steps that the device still has; before
        // others it has nothing to do, as a rule.
        let begun = match begun {
            Some(begun) => begun,
            None if tokens.is_some() => step.recording.submit_beginning()?,
            None => 0,
        };
        Ok(match &step.output {
            GpuOutput::Rows(rows) => {
                let rows = step.recording.submit_rest_read(begun, rows)?;
                Box::pin(async move { rows.await.map(StepOutput::Rows) })
            }
            GpuOutput::Next(next) => {
                let next = step.recording.submit_rest_read(begun, next)?;
                Box::pin(async move { next.await.map(StepOutput::Next) })
            }
            GpuOutput::Nothing => {
                let submission = step.recording.submit_rest(begun)?;
                Box::pin(async move { submission.await.map(|()| StepOutput::Rows(Vec::new())) })
            }
        })
    }
}

impl EngineSession for GpuSession {
    fn len(&self, sequence: usize) -> usize {
        self.lengths[sequence]
    }

    fn truncate(&mut self, sequence: usize, tokens: usize) {
        // A step that was submitted may have failed, and not have counted its tokens.
        self.counted.clear();
        if tokens >= self.lengths[sequence] {
            return;
        }
        // A state cannot forget its last tokens, unless what was before them is kept.
        let tokens = match (self.is_recurrent(), &mut self.kept) {
            (false, _) => tokens,
            (true, Some(kept)) => kept.go_back(&self.model, &self.memory, (sequence, tokens)),
            (true, None) => 0,
        };
        self.set_len(sequence, tokens);
    }

    fn keep_states(&mut self, sequence: usize) -> Result<()> {
        if !self.is_recurrent() {
            return Ok(());
        }
        let kept = match self.kept.take() {
            Some(kept) => kept,
            None => KeptStates::new(&self.model)?,
        };
        self.kept.insert(kept).keep(&self.memory, (sequence, self.lengths[sequence]))
    }

    fn fork(&self) -> Result<Box<dyn EngineSession>> {
        Ok(Box::new(self.duplicate()?))
    }

    fn read(&self) -> Result<Pending<Vec<Vec<HostKvCache>>>> {
        let (memories, lengths) = (self.memory.layers.clone(), self.lengths.clone());
        let shape = self.model.config.attention();
        Ok(Box::pin(async move {
            // One after another: staging memory for one layer will do.
            let mut layers = Vec::new();
            for memory in memories {
                layers.push(memory.read(shape, &lengths).await?);
            }
            Ok(layers)
        }))
    }

    fn write(&mut self, layers: Vec<Vec<HostKvCache>>) -> Result<()> {
        self.kept.iter_mut().for_each(KeptStates::forget);
        for (memory, layer) in self.memory.layers.iter().zip(&layers) {
            if let LayerMemory::Attention(cache) = memory {
                cache.write(layer)?;
                self.lengths = layer.iter().map(HostKvCache::len).collect();
            }
        }
        Ok(())
    }

    fn read_states(&self) -> Result<Pending<Vec<Vec<Vec<f32>>>>> {
        let states: Vec<_> = self.memory.states().cloned().collect();
        let lengths = self.lengths.clone();
        Ok(Box::pin(async move {
            let mut sequences = vec![Vec::new(); lengths.len()];
            for state in states {
                let read = state.read(&lengths).await?;
                sequences.iter_mut().zip(read).for_each(|(own, numbers)| own.push(numbers));
            }
            Ok(sequences)
        }))
    }

    fn write_states(&mut self, states: &[Vec<Vec<f32>>]) -> Result<()> {
        self.memory.states().enumerate().try_for_each(|(n, state)| {
            let of_sequences = states.iter().map(|own| own.get(n).map_or(&[][..], Vec::as_slice));
            state.write(&of_sequences.collect::<Vec<_>>())
        })
    }

    fn batch(&self) -> usize {
        self.model.batch
    }

    fn extend(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Pending<Vec<f32>>> {
        Ok(Box::pin(StepOutput::rows(self.submit(
            sequences,
            Some(tokens),
            &[],
            StepRequest::Logits(rows),
        )?)))
    }

    fn states(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Pending<Vec<f32>>> {
        Ok(Box::pin(StepOutput::rows(self.submit(
            sequences,
            Some(tokens),
            &[],
            StepRequest::States(rows),
        )?)))
    }

    fn choose_by(&mut self, plan: SamplingPlan) -> Result<()> {
        let (context, vocab) = (&self.model.context, self.model.config.vocab);
        let own = match &mut self.sampler {
            Some(own) => own,
            none => none.insert(GpuSampler::new(context, self.lengths.len())?),
        };
        own.update(context, &plan, vocab)
    }

    fn mask(&mut self, sequence: usize, mask: Option<&[u32]>) -> Result<()> {
        let (context, vocab) = (&self.model.context, self.model.config.vocab);
        self.sampler.as_mut().ok_or_else(unchosen)?.mask(context, vocab, sequence, mask)
    }

    fn step_next(
        &mut self,
        sequences: &[usize],
        tokens: Option<&[u32]>,
        rows: usize,
    ) -> Result<Pending<Vec<u32>>> {
        Ok(Box::pin(StepOutput::next(self.submit(
            sequences,
            tokens,
            &[],
            StepRequest::Next(rows),
        )?)))
    }

    /// A step that was submitted in vain cannot be taken back from a state.
    fn steps_ahead(&self) -> usize {
        if self.is_recurrent() { 0 } else { AHEAD }
    }

    fn layer_output(&mut self, layer: usize, hidden: &[f32]) -> Result<Pending<Vec<f32>>> {
        let tokens = hidden.len() / self.model.config.hidden;
        let scratch = self.model.scratch(self.model.stream(tokens)?)?;
        scratch.x.write(hidden)?;
        let input = Input {
            tokens: Tensor::uninit(&self.model.context, [tokens])?,
            ..self.input(self.model.kind(1, 0, StepRequest::Logits(0)), tokens)?
        };
        input.runs.write(&[0, 0])?;
        self.counted.clear();
        let mut encoder = self.model.context.encoder("layer");
        self.model.streamed.only(&mut encoder, layer);
        self.model.layer(
            &mut encoder,
            layer,
            &self.memory,
            &Input { run: tokens, ..input },
            &scratch,
        )?;
        encoder.submit()?;
        Ok(Box::pin(scratch.x.read()))
    }

    fn record(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)> {
        let longest = self.lengths[0] + ids.len();
        let (tokens, runs) = (
            self.model.context.upload(ids, [ids.len()])?,
            self.model.context.upload(&[0, self.lengths[0] as u32], [1, 2])?,
        );
        let input = Input {
            tokens,
            run: ids.len(),
            runs,
            advances: false,
            longest,
            stream: None,
            kept: None,
        };
        let step =
            self.model.step(&self.memory, &input, StepRequest::Logits(1), None, Submit::Later)?;
        match step.output {
            GpuOutput::Rows(logits) => Ok((step.recording, logits)),
            _ => Err(unchosen()),
        }
    }

    fn record_step(&mut self, past: usize) -> Result<Recording> {
        let sequences = self.lengths.len();
        let runs: Vec<u32> =
            (0..sequences).flat_map(|sequence| [sequence as u32, past as u32]).collect();
        self.runs.write(&runs)?;
        self.counted.clear();
        self.choose_by(SamplingPlan::new(vec![
            (SampleOptions::default().temperature(0.0), 0);
            sequences
        ]))?;
        // One that can be run again for the same position.
        let input = self.input(self.model.kind(sequences, 1, StepRequest::Next(1)), past + 1)?;
        let input = Input { advances: false, ..input };
        let sampler = self.sampler.as_ref().map(|sampler| (sampler, sampler.features));
        let request = StepRequest::Next(1);
        let step = self.model.step(&self.memory, &input, request, sampler, Submit::Later)?;
        Ok(step.recording)
    }
}
