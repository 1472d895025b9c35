//! Recurrent layers on the CPU.

use crate::{
    cpu::{self, cache::KvCache, isa::Isa},
    error::{Error, Result},
    formats::{
        Hybrid, ModelConfig,
        tensors::{Delta, LayerStep},
    },
    limits::speculation::MOST_DRAFTED,
    ops::{
        host,
        recurrent::{DeltaRates, DeltaShape},
    },
    weights::{dense::PackedDense, ternary::interleaved::InterleavedTernary},
};
use rayon::prelude::*;
use std::ops::Range;

/// What a layer keeps of a sequence.
#[derive(Clone)]
pub(super) struct LayerMemory {
    /// Of no tokens in recurrent layers.
    pub cache: KvCache,
    /// Of recurrent layers.
    pub state: Option<DeltaState>,
}

/// What a recurrent layer keeps of a sequence.
#[derive(Clone, Debug)]
pub(super) struct DeltaState {
    /// `[value_heads, key_dim, value_dim]`
    state: Vec<f32>,
    /// The last tokens before the convolution, `[kernel - 1, mixed]`.
    conv: Vec<f32>,
    kept: Option<Kept>,
}

/// What a recurrent layer keeps so that a sequence can forget its last tokens.
#[derive(Clone, Debug)]
struct Kept {
    /// How many tokens it had.
    past: usize,
    /// The state and the last tokens before the convolution then.
    state: Vec<f32>,
    conv: Vec<f32>,
    /// What the next step gives: queries, keys, values and gates, alpha and beta.
    inputs: Option<[Vec<f32>; 3]>,
}

/// The most tokens of a step of which the inputs are kept.
const MOST_KEPT: usize = MOST_DRAFTED + 1;

impl DeltaState {
    /// That of no tokens.
    pub fn new(hybrid: &Hybrid) -> Self {
        Self {
            state: vec![0.0; hybrid.shape().state()],
            conv: vec![0.0; (hybrid.kernel - 1) * hybrid.mixed()],
            kept: None,
        }
    }

    /// Keeps what it takes to forget tokens after the `past` that it has seen.
    pub fn keep(&mut self, past: usize) {
        let (state, conv) = (self.state.clone(), self.conv.clone());
        self.kept = Some(Kept { past, state, conv, inputs: None });
    }

    /// Goes back to the first `tokens`, or to as many fewer as can be. Returns how many.
    ///
    /// # Errors
    /// What the delta rule reports.
    pub fn go_back(
        &mut self,
        hybrid: &Hybrid,
        delta: &Delta<Vec<f32>>,
        tokens: usize,
    ) -> Result<usize> {
        let Some(mut kept) = self.kept.take().filter(|kept| kept.past <= tokens) else {
            self.clear();
            return Ok(0);
        };
        self.state.copy_from_slice(&kept.state);
        self.conv.copy_from_slice(&kept.conv);
        let widths = [hybrid.mixed() + hybrid.values(), hybrid.value_heads, hybrid.value_heads];
        let mut again = 0;
        if let Some(inputs) = &mut kept.inputs {
            again = (inputs[0].len() / widths[0]).min(tokens - kept.past);
            inputs.iter_mut().zip(widths).for_each(|(own, width)| own.truncate(again * width));
            self.advance(hybrid, delta, inputs.each_ref().map(Vec::as_slice))?;
        }
        kept.inputs = kept.inputs.filter(|_| again > 0);
        let found = kept.past + again;
        self.kept = Some(kept);
        Ok(found)
    }

    /// What value heads read of tokens that continue the state.
    fn advance(
        &mut self,
        hybrid: &Hybrid,
        delta: &Delta<Vec<f32>>,
        [x, alpha, beta]: [&[f32]; 3],
    ) -> Result<Vec<f32>> {
        let stride = hybrid.mixed() + hybrid.values();
        let mixed = host::short_conv(x, stride, &delta.conv, hybrid.kernel, &mut self.conv)?;
        let (dt_bias, decay) = (&delta.dt_bias[..], &delta.decay[..]);
        let rates = DeltaRates { alpha, beta, dt_bias, decay };
        host::gated_delta(hybrid.shape(), &mixed, &rates, &mut self.state)
    }

    /// Keeps what a step of this many tokens gives, if it is the next after [`DeltaState::keep`].
    fn keep_inputs(&mut self, tokens: usize, inputs: [&[f32]; 3]) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.inputs.is_none()) {
            let few = tokens <= MOST_KEPT;
            kept.inputs = Some(inputs.map(|own| if few { own.to_vec() } else { Vec::new() }));
        }
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.state.fill(0.0);
        self.conv.fill(0.0);
        self.kept = None;
    }

    /// Its numbers: the state, then the last tokens.
    pub fn read(&self) -> Vec<f32> {
        [&self.state[..], &self.conv].concat()
    }

    /// Overwrites it with what was read; there are as many numbers.
    pub fn write(&mut self, numbers: &[f32]) {
        let (state, conv) = numbers.split_at(self.state.len());
        self.state.copy_from_slice(state);
        self.conv.copy_from_slice(conv);
        self.kept = None;
    }
}

impl Hybrid {
    /// The heads of its recurrent layers.
    pub(crate) fn shape(&self) -> DeltaShape {
        DeltaShape {
            key_heads: self.key_heads,
            value_heads: self.value_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            tiled: self.tiled,
            regrouped: self.regrouped,
        }
    }
}

/// A step that only models with recurrent layers have, of the value before it; `kept` is what a step
/// computes for a later one.
pub(super) fn step(
    (config, isa): (&ModelConfig, Isa),
    step: &LayerStep<InterleavedTernary, Vec<f32>>,
    mut input: Vec<f32>,
    kept: &mut [Vec<f32>; 2],
    memories: &mut [&mut LayerMemory],
) -> Result<Vec<f32>> {
    match step {
        LayerStep::KeepGate => {
            let row = config.attention().row();
            let stride = row + config.heads * config.head_dim;
            let part = |columns: Range<usize>| {
                let rows = input.chunks_exact(stride);
                rows.flat_map(|own| &own[columns.clone()]).copied().collect::<Vec<f32>>()
            };
            kept[0] = part(row..stride);
            Ok(part(0..row))
        }
        LayerStep::OutputGate => {
            host::output_gate(&mut input, &kept[0])?;
            Ok(input)
        }
        LayerStep::DeltaRates { alpha, beta } => {
            *kept = rates(isa, &input, config.hidden, [alpha, beta])?;
            Ok(input)
        }
        LayerStep::Delta(delta) => {
            let states = memories.iter_mut().filter_map(|memory| memory.state.as_mut());
            let mut states: Vec<_> = states.collect();
            forward(config, &input, [&kept[0], &kept[1]], delta, &mut states)
        }
        _ => Err(no_hybrid()),
    }
}

/// A recurrent step of a model whose configuration has none.
fn no_hybrid() -> Error {
    Error::Invalid { op: "model", what: "recurrent layers without their configuration".into() }
}

/// What decays the state, and how much of a token is written to it, `[tokens, value_heads]` each, of
/// the layer's input `x`, by dense matrices.
fn rates(isa: Isa, x: &[f32], columns: usize, matrices: [&Vec<f32>; 2]) -> Result<[Vec<f32>; 2]> {
    let product = |matrix: &Vec<f32>| {
        let rows = matrix.len() / columns;
        cpu::dense::gemv(isa, x, &PackedDense::from_f32(rows, columns, matrix)?)
    };
    Ok([product(matrices[0])?, product(matrices[1])?])
}

/// Convolution, delta rule and gated norm of queries, keys, values and gates
/// `[sequences, run, mixed + values]`, of which each sequence continues its state; returns
/// `[sequences, run, values]`. Tokens go one after another, so that results do not depend on how a
/// text is cut into runs.
fn forward(
    config: &ModelConfig,
    x: &[f32],
    [alpha, beta]: [&[f32]; 2],
    delta: &Delta<Vec<f32>>,
    states: &mut [&mut DeltaState],
) -> Result<Vec<f32>> {
    let hybrid = config.hybrid.as_ref().ok_or_else(no_hybrid)?;
    let (shape, stride) = (hybrid.shape(), hybrid.mixed() + hybrid.values());
    let run = (x.len() / stride / states.len().max(1)).max(1);
    let heads = hybrid.value_heads;
    let rows = states
        .par_iter_mut()
        .zip(x.par_chunks_exact(run * stride))
        .zip(alpha.par_chunks_exact(run * heads))
        .zip(beta.par_chunks_exact(run * heads));
    let rows = rows.map(|(((state, x), alpha), beta)| {
        state.keep_inputs(run, [x, alpha, beta]);
        let read = state.advance(hybrid, delta, [x, alpha, beta])?;
        host::gated_norm(shape, &read, (&delta.norm, config.eps), (x, stride))
    });
    Ok(rows.collect::<Result<Vec<_>>>()?.concat())
}
