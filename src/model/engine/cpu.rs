//! The model on the CPU: the CPU references of the GPU's kernels, on all cores, or this many
//! threads.

use super::{
    cpu_experts::ExpertModel,
    delta_cpu::{self, DeltaState, LayerMemory},
    interface::{Engine, EngineSession, ModelPart, Pending, SessionOptions, unchosen},
    layers::{HostEnds, HostLayer, HostTable},
    sampling_plan::SamplingPlan,
};
use crate::{
    cpu::{self, cache::KvCache, isa::Isa, ops::rms_norm, threads::Threads},
    element::Element,
    error::{Error, Result},
    formats::{
        Hadamard, Hybrid, ModelConfig,
        tensors::{Ends, Layer, LayerStep, Stack, Table},
    },
    gpu::{context::Context, recording::Recording, tensor::Tensor},
    ops::{host, transformer::HostKvCache},
    weights::{dense::PackedDense, ternary::interleaved::InterleavedTernary},
};
use rayon::prelude::*;
use std::{future::ready, sync::Arc};

/// The gain of a norm before a linear layer, if there is one.
type Gain<'a> = Option<&'a Vec<f32>>;

/// What is made of rows of the residual stream: logits, or states.
type RowsOp = fn(&CpuModel, &[f32]) -> Result<Vec<f32>>;

/// Tokens of a prompt that are computed between two points at which the work can be given up.
const BATCH: usize = 64;

/// A decoder layer as the kernels for processors read it.
type CpuLayer = Layer<InterleavedTernary, Vec<f32>>;

type CpuStep = LayerStep<InterleavedTernary, Vec<f32>>;

/// What comes before and after the layers, as they read it.
type CpuEnds = Ends<Table<PackedDense, InterleavedTernary>, Vec<f32>>;

pub(crate) struct CpuModel {
    pub(super) config: ModelConfig,
    ends: CpuEnds,
    layers: Vec<CpuLayer>,
    /// What products are computed with, which this processor has.
    pub(super) isa: Isa,
    threads: Threads,
}

struct CpuSession {
    model: Arc<CpuModel>,
    /// Of every sequence, by layer.
    caches: Vec<Vec<LayerMemory>>,
    capacity: usize,
    /// The cosine and sine of every rotary angle, for as many positions as there have been: a
    /// context may have millions.
    angles: Vec<f32>,
    /// Cosines and sines for layers with a sliding window.
    local_angles: Vec<f32>,
    choice: Option<SamplingPlan>,
    /// The tokens that were chosen last.
    next: Vec<u32>,
}

impl Engine for CpuModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn contexts(&self) -> Vec<&Context> {
        Vec::new()
    }

    fn session(self: Arc<Self>, options: SessionOptions) -> Result<Box<dyn EngineSession>> {
        let cache = |layer| self.memory(layer, options.kv_type.unwrap_or(Element::F32));
        let caches =
            vec![(0..self.config.layers).map(cache).collect::<Result<_>>()?; options.sequences];
        let (angles, local_angles) = (Vec::new(), Vec::new());
        Ok(Box::new(CpuSession {
            model: self,
            caches,
            capacity: options.capacity,
            angles,
            local_angles,
            choice: None,
            next: Vec::new(),
        }))
    }

    fn parts(&self, _: SessionOptions) -> Result<Vec<ModelPart>> {
        Ok(Vec::new())
    }

    fn warm_up(&self, _: SessionOptions) -> Result<Pending<()>> {
        Ok(Box::pin(async { Ok(()) }))
    }
}

/// The ends of a model as kernels for processors read them.
fn ends(host: HostEnds) -> CpuEnds {
    let table = |table| match table {
        HostTable::Dense(matrix) => Table::Dense(matrix),
        HostTable::Ternary(matrix) => Table::Ternary(InterleavedTernary::new(&matrix)),
    };
    Ends {
        embedding: table(host.embedding),
        norm: host.norm,
        untied_head: host.untied_head.map(table),
    }
}

impl CpuModel {
    /// Lays out what was read, a layer after another.
    pub fn new(
        config: ModelConfig,
        host: HostEnds,
        layers: impl Iterator<Item = Result<HostLayer>>,
        threads: Threads,
    ) -> Result<Self> {
        let layers = layers.map(|layer| {
            let of_experts = |w: &_| {
                Ok(InterleavedTernary::of_parts(w, config.experts.map_or(1, |own| own.count)))
            };
            layer?.try_map_with(
                |w| Ok(InterleavedTernary::new(w)),
                of_experts,
                |gains| Ok(gains.clone()),
            )
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self { layers, ends: ends(host), config, isa: Isa::best(), threads })
    }

    /// What a layer keeps of a sequence of no tokens.
    fn memory(&self, layer: usize, element: Element) -> Result<LayerMemory> {
        let cache = KvCache::new(self.config.attention(), element)?;
        let recurrent = self.config.hybrid.as_ref().filter(|_| self.config.is_recurrent(layer));
        Ok(LayerMemory {
            cache: cache.window(self.config.window(layer)),
            state: recurrent.map(DeltaState::new),
        })
    }

    /// Tokens of one or more sequences through a layer: `x` `[sequences, run, hidden]`, of which
    /// each continues its cache.
    fn layer(
        &self,
        layer: &CpuLayer,
        x: &mut [f32],
        angles: &[f32],
        caches: &mut [&mut LayerMemory],
    ) -> Result<()> {
        // What the last step gives; none where it is the residual stream.
        let mut value: Option<Vec<f32>> = None;
        // What is computed for a step that is not the next.
        let mut kept = [Vec::new(), Vec::new()];
        let mut steps = layer.0.as_slice();
        while let Some((step, after)) = steps.split_first() {
            let input = value.as_deref().unwrap_or(x);
            let next;
            (next, steps) = match (step, after) {
                (LayerStep::Norm(gain), [LayerStep::Linear(stack), after @ ..]) => {
                    (Some(self.side_by_side(input, Some(gain), stack)?), after)
                }
                (LayerStep::Norm(gain), _) => {
                    (Some(rms_norm(input, gain, self.config.eps)?), after)
                }
                (LayerStep::Linear(stack), _) => {
                    (Some(self.side_by_side(input, None, stack)?), after)
                }
                (LayerStep::HeadNorms { queries, keys }, _) => {
                    let mut qkv = value.take().unwrap_or_else(|| x.to_vec());
                    let shape = self.config.attention();
                    let eps = self.config.eps;
                    host::rms_norm_heads(&mut qkv, shape, queries, keys, eps)?;
                    (Some(qkv), after)
                }
                (LayerStep::Attention, _) => {
                    let qkv = value.take().unwrap_or_else(|| x.to_vec());
                    (Some(self.attend(qkv, angles, caches)?), after)
                }
                (LayerStep::Gate, _) => self.gate(input, after)?,
                (
                    LayerStep::KeepGate
                    | LayerStep::OutputGate
                    | LayerStep::DeltaRates { .. }
                    | LayerStep::Delta(_),
                    _,
                ) => {
                    let input = value.take().unwrap_or_else(|| x.to_vec());
                    let model = (&self.config, self.isa);
                    (Some(delta_cpu::step(model, step, input, &mut kept, caches)?), after)
                }
                (LayerStep::Experts(experts), _) => {
                    let model = ExpertModel { config: &self.config, isa: self.isa };
                    (Some(model.forward(input, experts)?), after)
                }
                (LayerStep::Add, _) => {
                    x.iter_mut().zip(value.iter().flatten()).for_each(|(x, y)| *x += y);
                    (None, after)
                }
            };
            value = next;
        }
        Ok(())
    }

    /// Rotary embedding, and attention of queries, keys and values `[sequences, run, row]`.
    fn attend(
        &self,
        mut qkv: Vec<f32>,
        angles: &[f32],
        caches: &mut [&mut LayerMemory],
    ) -> Result<Vec<f32>> {
        let (row, width) =
            (self.config.attention().row(), self.config.heads * self.config.head_dim);
        let tokens = qkv.len() / row;
        let run = (tokens / caches.len().max(1)).max(1);
        let mut attended = vec![0f32; tokens * width];
        let sequences = qkv
            .par_chunks_exact_mut(run * row)
            .zip(caches)
            .zip(attended.par_chunks_exact_mut(run * width));
        sequences.try_for_each(|((qkv, memory), attended)| -> Result<()> {
            let cache = &mut memory.cache;
            cpu::attention::rope(qkv, angles, cache)?;
            attended.copy_from_slice(&cpu::attention::attention(qkv, cache)?);
            Ok(())
        })?;
        Ok(attended)
    }

    /// act(gate)·up; where a quantized linear layer follows, its product at once. Returns the
    /// steps that are left, too.
    fn gate<'a>(
        &self,
        gate_up: &[f32],
        after: &'a [CpuStep],
    ) -> Result<(Option<Vec<f32>>, &'a [CpuStep])> {
        let (width, gate) = (self.config.intermediate, self.config.gate());
        let (norm, next) = match after {
            [LayerStep::Norm(gain), next @ ..] => (Some((&gain[..], self.config.eps)), next),
            next => (None, next),
        };
        match next {
            [LayerStep::Linear(Stack::One(w)), next @ ..] if self.config.quantized_activations => {
                let gated = host::gate_quantize(gate_up, width, gate, norm)?;
                Ok((Some(cpu::ternary::bitlinear(self.isa, &gated, w)?), next))
            }
            _ => Ok((Some(host::gate(gate_up, width, gate)?), after)),
        }
    }

    /// The products of linear layers of one input, side by side.
    fn side_by_side(
        &self,
        x: &[f32],
        norm: Gain<'_>,
        stack: &Stack<InterleavedTernary, Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let parts = match stack {
            Stack::One(w) => return self.linear(x, norm, w),
            Stack::Normed(parts) => parts,
        };
        let normed = norm.map(|gain| rms_norm(x, gain, self.config.eps)).transpose()?;
        let x = normed.as_deref().unwrap_or(x);
        let products = parts
            .iter()
            .map(|(own, w)| Ok((w.rows(), self.linear(x, Some(own), w)?)))
            .collect::<Result<Vec<_>>>()?;
        let token = |token: usize| {
            products.iter().flat_map(move |(rows, product)| &product[token * rows..][..*rows])
        };
        Ok((0..x.len() / self.config.hidden).flat_map(token).copied().collect())
    }

    /// Norm, quantizer where the model has them, and product.
    fn linear(&self, x: &[f32], norm: Gain<'_>, w: &InterleavedTernary) -> Result<Vec<f32>> {
        let (tokens, eps) = (x.len() / w.columns(), self.config.eps);
        if !self.config.quantized_activations {
            let mut x = norm.map_or_else(|| Ok(x.to_vec()), |gain| rms_norm(x, gain, eps))?;
            self.rotate(&mut x, w.columns())?;
            return cpu::ternary_float::bitlinear(x, w);
        }
        let quantized = match norm {
            Some(gain) => host::rms_norm_quantize(x, tokens, gain, eps)?,
            None => host::quantize_activations(x, tokens, w.columns())?,
        };
        cpu::ternary::bitlinear(self.isa, &quantized, w)
    }

    /// What the LM head reads: the residual stream, normed.
    fn states(&self, x: &[f32]) -> Result<Vec<f32>> {
        rms_norm(x, &self.ends.norm, self.config.eps)
    }

    /// Rows of this width as a linear layer with rotated weights takes them, where they are.
    fn rotate(&self, x: &mut [f32], width: usize) -> Result<()> {
        let Some(Hadamard { block, signs, .. }) = &self.config.hadamard else { return Ok(()) };
        if let Some(signs) = signs.get(&width) {
            multiply(x, signs);
        }
        host::hadamard(x, *block)
    }

    /// The embedding's rows, as they were before they were rotated.
    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut x = match &self.ends.embedding {
            Table::Dense(table) => host::embed(tokens, table)?,
            Table::Ternary(table) => cpu::ternary_float::embed(tokens, table)?,
        };
        if let Some(Hadamard { block, signs, embedding: true, .. }) = &self.config.hadamard {
            host::hadamard(&mut x, *block)?;
            if let Some(signs) = signs.get(&self.config.hidden) {
                multiply(&mut x, signs);
            }
        }
        scale(&mut x, self.config.embedding_scale);
        Ok(x)
    }

    fn logits(&self, x: &[f32]) -> Result<Vec<f32>> {
        let mut normed = self.states(x)?;
        if self.config.hadamard.as_ref().is_some_and(|hadamard| hadamard.head) {
            self.rotate(&mut normed, self.config.hidden)?;
        }
        scale(&mut normed, self.config.logit_scale);
        match self.ends.head() {
            Table::Dense(head) => cpu::dense::gemv(self.isa, &normed, head),
            Table::Ternary(head) => cpu::ternary_float::bitlinear(normed, head),
        }
    }
}

fn scale(x: &mut [f32], by: f32) {
    if by != 1.0 {
        x.iter_mut().for_each(|x| *x *= by);
    }
}

/// Every row times the same numbers.
fn multiply(x: &mut [f32], by: &[f32]) {
    x.chunks_exact_mut(by.len())
        .for_each(|row| row.iter_mut().zip(by).for_each(|(x, by)| *x *= by));
}

impl CpuSession {
    /// Has the angles of this many positions ready.
    fn prepare(&mut self, positions: usize) {
        let config = &self.model.config;
        if self.angles.len() < positions * config.head_dim {
            let positions = positions.next_power_of_two().min(self.capacity);
            self.angles = config.rope_angles(positions);
            self.local_angles = config.local_angles(positions).unwrap_or_default();
        }
    }

    /// Appends `tokens` `[sequences, run]` to these sequences; gives what is `wanted` of the last
    /// `rows` of each.
    fn append(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
        op: RowsOp,
    ) -> Result<Vec<f32>> {
        let threads = self.model.threads.clone();
        let computed = threads.run(|| self.compute(sequences, tokens, rows, op));
        // Some recurrent layers may have seen the tokens, and others not.
        if computed.is_err() && self.model.config.hybrid.is_some() {
            sequences.iter().for_each(|&sequence| self.forget(sequence, 0));
        }
        computed
    }

    /// Forgets all but the first tokens of a sequence; of recurrent layers, where these are none.
    fn forget(&mut self, sequence: usize, tokens: usize) {
        for LayerMemory { cache, state } in &mut self.caches[sequence] {
            cache.truncate(tokens);
            state.iter_mut().filter(|_| tokens == 0).for_each(DeltaState::clear);
        }
    }

    /// Brings the states of a sequence back to its first `tokens`, or to fewer. Returns how many.
    fn go_back(&mut self, sequence: usize, tokens: usize) -> usize {
        let (model, caches) = (self.model.clone(), &mut self.caches[sequence]);
        let Some(hybrid) = &model.config.hybrid else { return tokens };
        let layers = caches.iter_mut().zip(&model.layers);
        let states = layers.filter_map(|(memory, layer)| Some((memory.state.as_mut()?, layer)));
        let back = || {
            let mut back = states.map(|(state, layer)| match layer.delta() {
                Some(delta) => state.go_back(hybrid, delta, tokens),
                None => Ok(0),
            });
            back.try_fold(tokens, |least, found| found.map(|found| least.min(found)))
        };
        model.threads.run(back).unwrap_or(0)
    }

    fn compute(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
        op: RowsOp,
    ) -> Result<Vec<f32>> {
        let run = tokens.len() / sequences.len().max(1);
        self.prepare(sequences.iter().map(|&sequence| self.len(sequence)).max().unwrap_or(0) + run);
        let (model, hidden) = (&self.model, self.model.config.hidden);
        let mut x = model.embed(tokens)?;
        // Each sequence's caches, in the order in which the sequences are named.
        let mut all: Vec<_> =
            self.caches.iter_mut().map(|caches| Some(caches.iter_mut())).collect();
        let mut caches: Vec<_> =
            sequences.iter().filter_map(|&sequence| all[sequence].take()).collect();
        for (l, layer) in model.layers.iter().enumerate() {
            let mut caches: Vec<_> = caches.iter_mut().filter_map(Iterator::next).collect();
            let angles =
                if model.config.window(l).is_some() { &self.local_angles } else { &self.angles };
            model.layer(layer, &mut x, angles, &mut caches)?;
        }
        if rows == 0 {
            return Ok(Vec::new());
        }
        let last = x
            .chunks_exact(run * hidden)
            .flat_map(|x| &x[(run - rows) * hidden..])
            .copied()
            .collect::<Vec<_>>();
        op(model, &last)
    }
}

/// Work is done when it is submitted.
fn done<T: Send + 'static>(result: T) -> Result<Pending<T>> {
    Ok(Box::pin(ready(Ok(result))))
}

impl EngineSession for CpuSession {
    fn len(&self, sequence: usize) -> usize {
        let hybrid = self.model.config.hybrid.as_ref();
        let layer = hybrid.map_or(0, Hybrid::first_attention);
        self.caches[sequence].get(layer).map_or(0, |memory| memory.cache.len())
    }

    fn truncate(&mut self, sequence: usize, tokens: usize) {
        // A state cannot forget its last tokens, unless what was before them is kept.
        let recurrent = self.model.config.hybrid.is_some();
        let shorter = recurrent && tokens < self.len(sequence);
        let tokens = if shorter { self.go_back(sequence, tokens) } else { tokens };
        self.forget(sequence, tokens);
    }

    fn keep_states(&mut self, sequence: usize) -> Result<()> {
        let past = self.len(sequence);
        let states = self.caches[sequence].iter_mut().filter_map(|memory| memory.state.as_mut());
        states.for_each(|state| state.keep(past));
        Ok(())
    }

    fn fork(&self) -> Result<Box<dyn EngineSession>> {
        let (model, caches, capacity) = (self.model.clone(), self.caches.clone(), self.capacity);
        let (angles, local_angles) = (self.angles.clone(), self.local_angles.clone());
        Ok(Box::new(Self {
            model,
            caches,
            capacity,
            angles,
            local_angles,
            choice: None,
            next: Vec::new(),
        }))
    }

    fn read(&self) -> Result<Pending<Vec<Vec<HostKvCache>>>> {
        let layer =
            |l: usize| self.caches.iter().map(|sequence| sequence[l].cache.read()).collect();
        done((0..self.model.config.layers).map(layer).collect::<Result<_>>()?)
    }

    fn write(&mut self, layers: Vec<Vec<HostKvCache>>) -> Result<()> {
        for (l, layer) in layers.into_iter().enumerate() {
            for (sequence, host) in self.caches.iter_mut().zip(layer) {
                sequence[l].cache.write(&host)?;
            }
        }
        Ok(())
    }

    fn read_states(&self) -> Result<Pending<Vec<Vec<Vec<f32>>>>> {
        let of_sequence = |layers: &Vec<LayerMemory>| {
            layers.iter().filter_map(|memory| memory.state.as_ref().map(DeltaState::read)).collect()
        };
        done(self.caches.iter().map(of_sequence).collect())
    }

    fn write_states(&mut self, states: &[Vec<Vec<f32>>]) -> Result<()> {
        for (layers, states) in self.caches.iter_mut().zip(states) {
            let own = layers.iter_mut().filter_map(|memory| memory.state.as_mut());
            own.zip(states).for_each(|(state, numbers)| state.write(numbers));
        }
        Ok(())
    }

    fn batch(&self) -> usize {
        BATCH
    }

    fn extend(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Pending<Vec<f32>>> {
        done(self.append(sequences, tokens, rows, CpuModel::logits)?)
    }

    fn states(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Pending<Vec<f32>>> {
        done(self.append(sequences, tokens, rows, CpuModel::states)?)
    }

    fn choose_by(&mut self, mut choice: SamplingPlan) -> Result<()> {
        self.choice.take().into_iter().for_each(|before| choice.keep_state(before));
        self.choice = Some(choice);
        Ok(())
    }

    fn mask(&mut self, sequence: usize, mask: Option<&[u32]>) -> Result<()> {
        let choice = self.choice.as_mut().ok_or_else(unchosen)?;
        choice.masks[sequence] = mask.map(<[u32]>::to_vec);
        Ok(())
    }

    fn step_next(
        &mut self,
        sequences: &[usize],
        tokens: Option<&[u32]>,
        rows: usize,
    ) -> Result<Pending<Vec<u32>>> {
        let tokens = tokens.map_or_else(|| std::mem::take(&mut self.next), <[u32]>::to_vec);
        let run = tokens.len() / sequences.len().max(1);
        let mut logits = self.append(sequences, &tokens, rows, CpuModel::logits)?;
        let mut next = Vec::with_capacity(sequences.len() * rows);
        for (i, row) in logits.chunks_mut(self.model.config.vocab).enumerate() {
            // How many tokens come after this one.
            let (sequence, after) = (sequences[i / rows], rows - 1 - i % rows);
            let (token, position) =
                (tokens[(i / rows + 1) * run - 1 - after], self.len(sequence) - 1 - after);
            let choice = self.choice.as_mut().ok_or_else(unchosen)?;
            next.push(choice.next(sequence, token, position, row)?);
        }
        self.next.clone_from(&next);
        done(next)
    }

    fn steps_ahead(&self) -> usize {
        0
    }

    fn layer_output(&mut self, layer: usize, hidden: &[f32]) -> Result<Pending<Vec<f32>>> {
        let mut x = hidden.to_vec();
        let window = self.model.config.window(layer);
        let mut cache = self.model.memory(layer, Element::F32)?;
        self.prepare(hidden.len() / self.model.config.hidden);
        let angles = if window.is_some() { &self.local_angles } else { &self.angles };
        self.model.threads.run(|| {
            self.model.layer(&self.model.layers[layer], &mut x, angles, &mut [&mut cache])
        })?;
        done(x)
    }

    fn record(&self, _: &[u32]) -> Result<(Recording, Tensor<f32>)> {
        Err(Error::Invalid { op: "model", what: "nothing is recorded on the CPU".into() })
    }

    fn record_step(&mut self, _: usize) -> Result<Recording> {
        Err(Error::Invalid { op: "model", what: "nothing is recorded on the CPU".into() })
    }
}

#[cfg(test)]
mod tests;
