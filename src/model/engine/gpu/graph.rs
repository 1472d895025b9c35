//! A model on a GPU, and what is recorded before and after its layers. The steps of a layer are
//! recorded in layer.rs.

use super::{
    linear::{Rotation, rotations},
    memory::{DeltaInputs, Memory},
    offload::Streamed,
};
use crate::{
    error::{Error, Result},
    formats::{config::ModelConfig, tensors::Table},
    gpu::{
        capabilities::Capabilities, context::Context, encoder::Encoder, recording::Recording,
        tensor::Tensor,
    },
    memory::Footprint,
    model::engine::{
        interface::{SessionOptions, unchosen},
        layers::{GpuEnds, GpuLayer, GpuTable},
        sampling_plan::{LogitChanges, SamplingPlan},
    },
    ops::{
        bitnet::{self, BlockFloatActivations},
        tensor,
        transformer::{
            self, CachePositions, LogitMasks, Penalizer, Penalties, RmsNorm, SampleOptions,
            SampleParams, sample::Searches,
        },
    },
    spans::span,
};
use std::{collections::BTreeMap, sync::Arc};

/// The weights on a GPU.
#[derive(Clone)]
pub(in crate::model) struct GpuModel {
    /// The caller's.
    pub(super) app_context: Context,
    /// The context of intermediate results, which are counted as activations.
    pub(super) context: Context,
    /// With as many layers as are here.
    pub(super) config: ModelConfig,
    pub(super) ends: Arc<GpuEnds>,
    pub(super) layers: Arc<Vec<GpuLayer>>,
    /// Those of them whose matrices are on the host.
    pub(super) streamed: Arc<Streamed>,
    /// Of models whose weights are rotated, by the width of what is.
    pub(super) rotations: Arc<BTreeMap<usize, Rotation>>,
    /// What the embedding's rows and the LM head's input are multiplied by, where they are.
    embedding_scale: Option<Tensor<f32>>,
    logit_scale: Option<Tensor<f32>>,
    /// Of prompts; see [`ModelBuilder::f16_attention`](crate::model::ModelBuilder::f16_attention).
    pub(super) f16_attention: bool,
    /// Tokens that are computed together, at most.
    pub(super) batch: usize,
}

/// What a recording appends to some of the sequences.
#[derive(Clone)]
pub(super) struct Input {
    /// `[sequences · run]`
    pub tokens: Tensor<u32>,
    /// Tokens of each sequence.
    pub run: usize,
    /// `[sequences, 2]`: which sequences these are, and how many tokens each has had before; see
    /// [`CachePositions`].
    pub runs: Tensor<u32>,
    /// Whether the recording itself raises the number of tokens by one before it begins.
    pub advances: bool,
    /// The most positions that a token sees.
    pub longest: usize,
    /// The residual stream, `[sequences · run, hidden]`, of a model whose first layers are
    /// elsewhere.
    pub stream: Option<Tensor<f32>>,
    /// By layer, where recurrent ones keep what they are given.
    pub kept: Option<Arc<Vec<Option<DeltaInputs>>>>,
}

impl Input {
    pub fn positions(&self) -> CachePositions<'_> {
        CachePositions::new(&self.runs, self.run)
    }
}

/// How tokens are chosen: in tables, so that a recorded step goes on with what is set later.
pub(super) struct GpuSampler {
    draws: SampleParams,
    /// From the first choice on that has some.
    changes: Option<GpuChanges>,
    /// From the first mask on.
    masks: Option<GpuMasks>,
    /// What a step needs that chooses by it.
    pub features: SamplerFeatures,
}

/// What changes the logits before.
struct GpuChanges {
    /// `[sequences, 4]`
    penalties: Tensor<f32>,
    /// `[sequences, vocab]`
    biases: Tensor<f32>,
    /// Biases of each sequence, as they were set.
    current_biases: Vec<BTreeMap<u32, f32>>,
    /// `[sequences, vocab]`: kept by the steps themselves.
    counts: Tensor<u32>,
}

/// Which tokens are allowed.
struct GpuMasks {
    /// `[sequences, ceil(vocab / 32)]`
    words: Tensor<u32>,
    /// Whether a sequence has a mask.
    masked: Vec<bool>,
}

/// What is recorded of a choice. A step with all that is needed, and more, gives the same tokens.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SamplerFeatures {
    searches: Searches,
    /// Whether something changes the logits.
    changes: bool,
    /// Whether some sequence has a mask.
    masks: bool,
}

impl SamplerFeatures {
    /// Both.
    pub fn or(self, other: Self) -> Self {
        Self {
            searches: self.searches.or(other.searches),
            changes: self.changes | other.changes,
            masks: self.masks | other.masks,
        }
    }
}

impl GpuSampler {
    /// The largest logits of this many sequences, until something else is set.
    pub fn new(context: &Context, sequences: usize) -> Result<Self> {
        let greedy = vec![(SampleOptions::default().temperature(0.0), 0); sequences];
        Ok(Self {
            draws: SampleParams::new(context, &greedy)?,
            changes: None,
            masks: None,
            features: SamplerFeatures::default(),
        })
    }

    /// Has steps choose in another way, of tokens of a vocabulary of this many: those that are
    /// recorded already too, where they have what it needs.
    pub fn update(&mut self, context: &Context, plan: &SamplingPlan, vocab: usize) -> Result<()> {
        self.draws.rewrite(&plan.draws)?;
        let changes = !plan.changes.iter().all(LogitChanges::is_none);
        if changes && self.changes.is_none() {
            self.changes = Some(GpuChanges::new(context, plan.changes.len(), vocab)?);
        }
        self.changes.as_mut().map_or(Ok(()), |own| own.update(&plan.changes))?;
        let searches = self.draws.searches();
        self.features = SamplerFeatures { searches, changes, ..self.features };
        Ok(())
    }

    /// Has later steps choose among the tokens of a mask for a sequence, or among all.
    pub fn mask(
        &mut self,
        context: &Context,
        vocab: usize,
        sequence: usize,
        mask: Option<&[u32]>,
    ) -> Result<()> {
        if self.masks.is_none() && mask.is_some() {
            self.masks = Some(GpuMasks::new(context, self.draws.sequences(), vocab)?);
        }
        let Some(masks) = &mut self.masks else { return Ok(()) };
        masks.set(sequence, mask)?;
        self.features.masks = masks.masked.contains(&true);
        Ok(())
    }
}

impl GpuMasks {
    /// Those that allow all tokens.
    fn new(context: &Context, sequences: usize, vocab: usize) -> Result<Self> {
        let shape = [sequences, vocab.div_ceil(32)];
        let all = vec![u32::MAX; shape[0] * shape[1]];
        Ok(Self { words: context.upload(&all, shape)?, masked: vec![false; sequences] })
    }

    fn set(&mut self, sequence: usize, mask: Option<&[u32]>) -> Result<()> {
        if mask.is_none() && !self.masked[sequence] {
            return Ok(());
        }
        let (_, count) = self.words.shape().as_matrix();
        let mut words = mask.map_or_else(|| vec![u32::MAX; count], <[u32]>::to_vec);
        words.resize(count, 0);
        self.masked[sequence] = mask.is_some();
        self.words.write_row(sequence, &words)
    }
}

impl GpuChanges {
    /// Those that change nothing.
    fn new(context: &Context, sequences: usize, vocab: usize) -> Result<Self> {
        Ok(Self {
            penalties: Penalties::upload(context, &vec![Penalties::NONE; sequences])?,
            biases: Tensor::zeros(context, [sequences, vocab])?,
            current_biases: vec![BTreeMap::new(); sequences],
            counts: Tensor::zeros(context, [sequences, vocab])?,
        })
    }

    /// Writes what is another than before: a vocabulary's numbers are many.
    fn update(&mut self, changes: &[LogitChanges]) -> Result<()> {
        let (_, vocab) = self.biases.shape().as_matrix();
        self.penalties.write(&Penalties::words(
            &changes.iter().map(|change| change.penalties).collect::<Vec<_>>(),
        )?)?;
        for (sequence, (change, current)) in
            changes.iter().zip(&mut self.current_biases).enumerate()
        {
            if change.bias != *current {
                self.biases.write_row(sequence, &change.biases(vocab))?;
                current.clone_from(&change.bias);
            }
            change
                .counts
                .as_ref()
                .map_or(Ok(()), |counts| self.counts.write_row(sequence, counts))?;
        }
        Ok(())
    }
}

/// A recorded step of some sequences.
pub(super) struct Step {
    pub recording: Recording,
    /// How many of the recording's dispatches were submitted while it was recorded.
    pub begun: usize,
    pub output: GpuOutput,
}

/// What a step gives.
pub(super) enum GpuOutput {
    Nothing,
    /// Logits, `[sequences · rows, vocab]`; states, `[sequences · rows, hidden]`; or the residual
    /// stream, `[sequences · run, hidden]`.
    Rows(Tensor<f32>),
    /// Tokens that were chosen, `[sequences · rows]`.
    Next(Tensor<u32>),
}

/// What records something of rows of the residual stream, from the first of them on, this many.
type RowsOp = fn(&GpuModel, &mut Encoder, &Tensor<f32>, usize, usize) -> Result<Tensor<f32>>;

/// When a step is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Submit {
    /// At once, and never again: the device begins with it while the rest is recorded, which is
    /// what the recording has.
    Once,
    /// At once in the same way, and again later: the recording is whole.
    Now,
    Later,
}

/// What is wanted of a step of the whole model. Of a part that other layers follow, it is the
/// residual stream of all tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StepRequest {
    /// The logits after the last tokens of each sequence, this many.
    Logits(usize),
    /// The states of the last tokens of each sequence, this many: after the final norm.
    States(usize),
    /// The tokens that are chosen after the last ones of each sequence, this many. Of a sequence's
    /// single token, the chosen one takes the place: it stays on the GPU as the next step's input.
    Next(usize),
}

impl GpuModel {
    /// A model of such ends and layers, some of which are streamed perhaps; or a part of one.
    pub(super) fn of(
        context: &Context,
        config: ModelConfig,
        ends: GpuEnds,
        layers: Vec<GpuLayer>,
        streamed: Streamed,
    ) -> Result<Self> {
        let weights = context.with_label(Footprint::WEIGHTS);
        let rotations = Arc::new(rotations(&weights, &config)?);
        context.check_unreported_submissions()?;
        let batch = batch(context.capabilities(), config.hidden, config.intermediate);
        let scale = |scale: f32| (scale != 1.0).then(|| weights.upload(&[scale], [1])).transpose();
        let (embedding_scale, logit_scale) =
            (scale(config.embedding_scale)?, scale(config.logit_scale)?);
        Ok(Self {
            app_context: context.clone(),
            context: context.with_label(Footprint::ACTIVATIONS),
            config,
            ends: Arc::new(ends),
            layers: Arc::new(layers),
            streamed: Arc::new(streamed),
            rotations,
            embedding_scale,
            logit_scale,
            f16_attention: false,
            batch,
        })
    }

    /// Sets whether the attention of prompts is computed in f16.
    pub(super) fn f16_attention(self, f16_attention: bool) -> Self {
        Self { f16_attention, ..self }
    }

    /// Returns the model on another context of the device.
    pub(super) fn on(&self, context: Context) -> Self {
        Self { context, ..self.clone() }
    }

    /// The memory of empty sequences.
    pub(super) fn memory(&self, options: SessionOptions) -> Result<Memory> {
        Memory::new(&self.context.with_label(Footprint::CACHE), &self.config, options)
    }

    /// Room for the residual stream of this many tokens.
    pub(super) fn stream(&self, rows: usize) -> Result<Tensor<f32>> {
        Tensor::uninit(&self.context, [rows, self.config.hidden])
    }

    /// Records the embedding; gives the residual stream.
    fn embedded(&self, encoder: &mut Encoder, input: &Input) -> Result<Tensor<f32>> {
        let (x, table) = (
            self.stream(input.tokens.len())?,
            self.ends.embedding.as_ref().ok_or_else(|| elsewhere("embedding"))?,
        );
        embed(encoder, input, table, &x)?;
        if self.config.hadamard.as_ref().is_some_and(|hadamard| hadamard.embedding) {
            self.rotations
                .get(&self.config.hidden)
                .map_or(Ok(()), |rotation| rotation.undo(encoder, &x))?;
        }
        self.embedding_scale
            .as_ref()
            .map_or(Ok(()), |scale| tensor::mul(&x, scale).forward_into(encoder, &x))?;
        Ok(x)
    }

    /// Records all layers, and the embedding before them; gives the residual stream.
    fn hidden(
        &self,
        encoder: &mut Encoder,
        memory: &Memory,
        input: &Input,
        mode: Submit,
    ) -> Result<Tensor<f32>> {
        let x = input
            .stream
            .as_ref()
            .map_or_else(|| self.embedded(encoder, input), |x| Ok(x.clone()))?;
        let mut scratch = self.scratch(x)?;
        self.streamed.begin(encoder);
        for layer in 0..self.layers.len() {
            if let Some(kept) = input.kept.as_ref().and_then(|kept| kept[layer].as_ref()) {
                scratch.keep(kept)?;
            }
            self.layer(encoder, layer, memory, input, &scratch)?;
            self.streamed.after(encoder, layer);
            // Little at first, so that the device begins soon; then more, since a submission takes
            // time too. But between two submissions another session's may come, which leaves other
            // layers in the slots.
            if mode != Submit::Later && (layer + 1).is_power_of_two() && self.streamed.is_empty() {
                encoder.flush(mode == Submit::Now)?;
            }
        }
        Ok(scratch.x)
    }

    /// The final norm and the LM head.
    fn head(&self) -> Result<&(Tensor<f32>, GpuTable)> {
        self.ends.head.as_ref().ok_or_else(|| elsewhere("head"))
    }

    /// Records the final norm of rows `first..first + rows` of the residual stream.
    fn states(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<f32>,
        first: usize,
        rows: usize,
    ) -> Result<Tensor<f32>> {
        let (normed, (norm, _)) = (self.stream(rows)?, self.head()?);
        RmsNorm::new(norm, self.config.eps).skip_rows(first).forward_into(encoder, x, &normed)?;
        Ok(normed)
    }

    /// Records the final norm and the LM head for rows `first..first + rows` of the residual stream.
    fn logits(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<f32>,
        first: usize,
        rows: usize,
    ) -> Result<Tensor<f32>> {
        if let (Table::Ternary(head), None, None) =
            (&self.head()?.1, &self.config.hadamard, &self.logit_scale)
        {
            let rounded = BlockFloatActivations::uninit(
                &self.context,
                rows,
                self.config.hidden,
                head.group(),
            )?;
            bitnet::rms_norm_block_float_into(
                encoder,
                x,
                first,
                &self.head()?.0,
                self.config.eps,
                &rounded,
            )?;
            return bitnet::bitlinear_block_float(encoder, &rounded, head);
        }
        let normed = self.states(encoder, x, first, rows)?;
        if self.config.hadamard.as_ref().is_some_and(|hadamard| hadamard.head) {
            self.rotations
                .get(&self.config.hidden)
                .map_or(Ok(()), |rotation| rotation.apply(encoder, &normed))?;
        }
        self.logit_scale
            .as_ref()
            .map_or(Ok(()), |scale| tensor::mul(&normed, scale).forward_into(encoder, &normed))?;
        match &self.head()?.1 {
            Table::Dense(head) => transformer::dense_gemv(&normed, head).forward(encoder),
            Table::Ternary(head) => {
                let rounded = bitnet::ActivationQuantizer::block_float(head.group())
                    .quantize(encoder, &normed)?;
                bitnet::bitlinear_block_float(encoder, &rounded, head)
            }
        }
    }

    /// Records what appends `input`, and how the next tokens are chosen, if that is requested.
    pub(super) fn step(
        &self,
        memory: &Memory,
        input: &Input,
        request: StepRequest,
        sampler: Option<(&GpuSampler, SamplerFeatures)>,
        mode: Submit,
    ) -> Result<Step> {
        span!("record", tokens = input.tokens.len(), longest = input.longest);
        let mut encoder = self.context.encoder(if input.run == 1 { "decode" } else { "prefill" });
        let x = self.hidden(&mut encoder, memory, input, mode)?;
        let output = match request {
            _ if self.ends.head.is_none() => GpuOutput::Rows(x),
            StepRequest::Logits(0) | StepRequest::States(0) => GpuOutput::Nothing,
            StepRequest::Logits(rows) => {
                GpuOutput::Rows(self.of_last(&mut encoder, &x, input, rows, Self::logits)?)
            }
            StepRequest::States(rows) => {
                GpuOutput::Rows(self.of_last(&mut encoder, &x, input, rows, Self::states)?)
            }
            StepRequest::Next(rows) => {
                let (sampler, features) = sampler.ok_or_else(unchosen)?;
                let logits = self.of_last(&mut encoder, &x, input, rows, Self::logits)?;
                GpuOutput::Next(choose(&mut encoder, &logits, input, sampler, features)?)
            }
        };
        Ok(Step { begun: encoder.submitted(), recording: encoder.finish(), output })
    }

    /// Records what is made of the last `rows` tokens of each sequence.
    fn of_last(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<f32>,
        input: &Input,
        rows: usize,
        op: RowsOp,
    ) -> Result<Tensor<f32>> {
        let (tokens, run) = (input.tokens.len(), input.run);
        let count = tokens / run * rows;
        // Of one sequence, and of whole runs, they are the last rows of all.
        if count == rows || rows == run {
            return op(self, encoder, x, tokens - count, count);
        }
        let last: Vec<u32> =
            (0..tokens as u32).filter(|token| token % run as u32 >= (run - rows) as u32).collect();
        let last = tensor::gather(x, &self.context.upload(&last, [count])?).forward(encoder)?;
        op(self, encoder, &last, 0, count)
    }
}

/// A part of a model is asked for what another has.
fn elsewhere(what: &str) -> Error {
    Error::Invalid { op: "model", what: format!("the {what} is in another part of it") }
}

/// Tokens of a prefill chunk of a whole model: enough for the GEMM, few enough for the activations'
/// memory and for a prompt to be canceled soon. With tensor cores a GEMM needs more tokens, and
/// takes less time for them (benches/notes/measurements.md). Where submissions are limited, the
/// largest product fits into one.
fn batch(capabilities: &Capabilities, hidden: usize, intermediate: usize) -> usize {
    const FEWEST: u64 = 32;
    let most = if capabilities.tensor_cores.is_empty() { 512 } else { 2048 };
    let of_token = 2 * hidden as u64 * intermediate as u64;
    let fits =
        capabilities.submission_limit.map_or(most, |limit| limit.multiply_adds / of_token.max(1));
    // A power of two.
    (1 << fits.clamp(FEWEST, most).ilog2()) as usize
}

/// The embedding's rows of the tokens of `input`, which are counted where it is so.
fn embed(encoder: &mut Encoder, input: &Input, table: &GpuTable, y: &Tensor<f32>) -> Result<()> {
    let look_up = match table {
        Table::Dense(table) => transformer::embed(&input.tokens, table),
        Table::Ternary(table) => transformer::embed(&input.tokens, table),
    };
    let look_up = if input.advances { look_up.advance(&input.runs) } else { look_up };
    look_up.forward_into(encoder, y)
}

/// Records the choice of the tokens that follow the last ones of `input`, of which there are
/// logits.
fn choose(
    encoder: &mut Encoder,
    logits: &Tensor<f32>,
    input: &Input,
    sampler: &GpuSampler,
    features: SamplerFeatures,
) -> Result<Tensor<u32>> {
    let (tokens, positions) = (&input.tokens, input.positions());
    if let Some(GpuChanges { penalties, biases, counts, .. }) =
        sampler.changes.as_ref().filter(|_| features.changes)
    {
        let penalizer = Penalizer::new(penalties, biases, counts);
        penalizer.forward(encoder, logits, tokens, positions)?;
    }
    if let Some(masks) = sampler.masks.as_ref().filter(|_| features.masks) {
        LogitMasks::new(&masks.words).forward(encoder, logits, positions)?;
    }
    let next = if input.run == 1 {
        tokens.clone()
    } else {
        Tensor::uninit(encoder.context(), [logits.shape().as_matrix().0])?
    };
    let params = sampler.draws.with(features.searches);
    transformer::sample(logits, positions, &params).forward_into(encoder, &next)?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::capabilities::SubmissionLimit;

    #[test]
    fn the_largest_product_fits_into_a_submission() {
        let apple = Capabilities::example(true);
        let limit = apple.submission_limit.unwrap();
        for (hidden, intermediate, expected) in
            [(2560, 6912, 512), (4096, 14_336, 128), (256, 688, 512)]
        {
            let batch = batch(&apple, hidden, intermediate);
            assert_eq!(batch, expected);
            assert!((batch * 2 * hidden * intermediate) as u64 <= limit.multiply_adds);
        }
        let slow = Capabilities { submission_limit: Some(SubmissionLimit::new(1, 1)), ..apple };
        assert_eq!(batch(&slow, 2560, 6912), 32, "there is a fewest");
        assert_eq!(batch(&Capabilities::example(false), 4096, 14_336), 512);
    }
}
