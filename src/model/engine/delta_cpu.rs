//! Recurrent layers on the CPU.

use crate::{
    cpu::{self, cache::KvCache, isa::Isa},
    error::{Error, Result},
    formats::{
        Hybrid, ModelConfig,
        tensors::{Delta, LayerStep},
    },
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
}

impl DeltaState {
    /// That of no tokens.
    pub fn new(hybrid: &Hybrid) -> Self {
        Self {
            state: vec![0.0; hybrid.shape().state()],
            conv: vec![0.0; (hybrid.kernel - 1) * hybrid.mixed()],
        }
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.state.fill(0.0);
        self.conv.fill(0.0);
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
        let mixed = host::short_conv(x, stride, &delta.conv, hybrid.kernel, &mut state.conv)?;
        let (dt_bias, decay) = (&delta.dt_bias[..], &delta.decay[..]);
        let rates = DeltaRates { alpha, beta, dt_bias, decay };
        let read = host::gated_delta(shape, &mixed, &rates, &mut state.state)?;
        host::gated_norm(shape, &read, (&delta.norm, config.eps), (x, stride))
    });
    Ok(rows.collect::<Result<Vec<_>>>()?.concat())
}
