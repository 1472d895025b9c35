//! Records the steps of a layer. Where one dispatch does several of them in fewer bytes or less
//! time, it is recorded for all.

use super::{
    experts::ExpertScratch,
    graph::{GpuModel, Input},
    linear::{GpuStack, Prepared, fits, gated, side_by_side},
    memory::{DeltaInputs, LayerMemory, Memory},
    recurrent::{RecurrentScratch, no_hybrid},
};
use crate::{
    error::{Error, Result},
    formats::tensors::{LayerStep, Source, Stack},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    model::engine::layers::GpuLayer,
    ops::{
        bitnet::{self, BlockFloatActivations, Layout, QuantizedActivations},
        recurrent,
        transformer::{self, RmsNorm, RmsNormHeads},
    },
    weights::ternary::matrix::TernaryMatrix,
};

type GpuStep = LayerStep<TernaryMatrix, Tensor<f32>>;

/// Steps that are left to record, and where the next linear layer's input comes from.
type Left<'a> = (&'a [GpuStep], Source);

/// Intermediate results of a layer, in buffers that all layers share.
pub(super) struct Scratch {
    /// The residual stream, `[rows, hidden]`.
    pub x: Tensor<f32>,
    normed: Prepared,
    qkv: Tensor<f32>,
    attended: Tensor<f32>,
    attended_q: Prepared,
    gate_up: Tensor<f32>,
    /// act(gate)·up, `[rows, intermediate]`.
    hidden: Tensor<f32>,
    gated: Prepared,
    /// What is normed before it is added to the residual stream, `[rows, hidden]`.
    added: Option<Tensor<f32>>,
    experts: Option<ExpertScratch>,
    recurrent: Option<RecurrentScratch>,
}

impl Scratch {
    /// Returns the input of a linear layer, and where it is prepared.
    fn input(&self, source: Source) -> (&Tensor<f32>, &Prepared) {
        match source {
            Source::Stream => (&self.x, &self.normed),
            Source::Attention => (&self.attended, &self.attended_q),
            Source::Gate => (&self.hidden, &self.gated),
        }
    }

    /// Returns where a product goes, by the steps that follow it, and those of them that are left.
    fn output<'a>(&self, (after, source): Left<'a>) -> (Out<'_, f32>, Left<'a>) {
        let y = match (after, &self.added, &self.recurrent) {
            ([LayerStep::Add, after @ ..], ..) => {
                return (Out::add(&self.x), (after, Source::Stream));
            }
            ([LayerStep::Norm(_), LayerStep::Add, ..], Some(added), _) => added,
            ([LayerStep::Gate, ..], ..) => &self.gate_up,
            ([LayerStep::KeepGate, ..], _, Some(own)) => &own.attention,
            ([LayerStep::Delta(_), ..], _, Some(own)) => &own.inputs.x,
            _ => &self.qkv,
        };
        (Out::set(y), (after, source))
    }

    /// Has a recurrent layer be given what it reads in these buffers.
    pub fn keep(&mut self, inputs: &DeltaInputs) -> Result<()> {
        let rows = self.x.shape().as_matrix().0;
        self.recurrent.as_mut().map_or(Ok(()), |own| {
            own.inputs = inputs.beginning(rows)?;
            Ok(())
        })
    }

    /// Returns intermediate results of recurrent layers.
    fn recurrent(&self) -> Result<&RecurrentScratch> {
        self.recurrent.as_ref().ok_or_else(no_hybrid)
    }
}

impl GpuModel {
    /// Allocates intermediate results of the tokens of a residual stream.
    pub(super) fn scratch(&self, x: Tensor<f32>) -> Result<Scratch> {
        let (c, context, rows) = (&self.config, &self.context, x.shape().as_matrix().0);
        let width = c.heads * c.head_dim;
        let added = self.layers.iter().any(GpuLayer::norms_sums);
        Ok(Scratch {
            experts: self.expert_scratch(rows)?,
            recurrent: self.recurrent_scratch(rows)?,
            x,
            normed: self.prepared([rows, c.hidden], Source::Stream)?,
            qkv: Tensor::uninit(context, [rows, c.attention().row()])?,
            attended: Tensor::uninit(context, [rows, width])?,
            attended_q: self.prepared([rows, width], Source::Attention)?,
            gate_up: Tensor::uninit(context, [rows, 2 * c.intermediate])?,
            hidden: Tensor::uninit(context, [rows, c.intermediate])?,
            gated: self.prepared([rows, c.intermediate], Source::Gate)?,
            added: added.then(|| Tensor::uninit(context, [rows, c.hidden])).transpose()?,
        })
    }

    /// Allocates what goes into the linear layers of a source, as their matrices take it.
    pub(super) fn prepared(&self, [rows, columns]: [usize; 2], source: Source) -> Result<Prepared> {
        if self.config.quantized_activations {
            let layout = self.layout(columns, source);
            let quantized = QuantizedActivations::uninit(&self.context, rows, columns, layout)?;
            return Ok(Prepared::Quantized(quantized));
        }
        let first =
            self.layers.first().and_then(|layer| layer.matrices_of(source).first().copied());
        let group = first.and_then(TernaryMatrix::group);
        let rounded = BlockFloatActivations::uninit(&self.context, rows, columns, group)?;
        Ok(Prepared::Floats { rounded, rotation: self.rotations.get(&columns).cloned() })
    }

    /// Returns the layout of quantized activations: another one where a matrix has per-group
    /// scales.
    fn layout(&self, columns: usize, source: Source) -> Layout {
        let matrices = self.layers.iter().flat_map(|layer| layer.matrices_of(source));
        match matrices.into_iter().any(|w| w.group().is_some()) {
            true => Layout::Int8,
            false => bitnet::layout(columns, self.context.capabilities(), self.context.language()),
        }
    }

    /// Records one layer on the residual stream.
    pub(super) fn layer(
        &self,
        encoder: &mut Encoder,
        index: usize,
        memory: &Memory,
        input: &Input,
        s: &Scratch,
    ) -> Result<()> {
        let mut left: Left<'_> = (&self.layers[index].0, Source::Stream);
        while let ([step, after @ ..], source) = left {
            left = match (step, after) {
                (LayerStep::Norm(gain), [LayerStep::Linear(stack), after @ ..]) => {
                    self.linear(encoder, s, Some(gain), stack, (after, source))?
                }
                (LayerStep::Linear(stack), _) => {
                    self.linear(encoder, s, None, stack, (after, source))?
                }
                (LayerStep::Norm(gain), [LayerStep::Add, after @ ..]) => {
                    let (sum, eps) = (Out::add(&s.x), self.config.eps);
                    let added = s.added.as_ref().ok_or_else(no_order)?;
                    RmsNorm::new(gain, eps).forward_into(encoder, added, sum)?;
                    (after, Source::Stream)
                }
                (LayerStep::HeadNorms { queries, keys }, _) => {
                    let (shape, eps) = (self.config.attention(), self.config.eps);
                    RmsNormHeads::new(shape, queries, keys, eps).forward(encoder, &s.qkv)?;
                    (after, source)
                }
                (LayerStep::Attention, _) => {
                    self.attend(encoder, index, memory, input, s)?;
                    (after, Source::Attention)
                }
                (LayerStep::Gate, _) => self.gate(encoder, s, after)?,
                (LayerStep::Norm(gain), [LayerStep::Experts(experts), after @ ..]) => {
                    let (y, left) = s.output((after, source));
                    let experts = (experts, s.experts.as_ref());
                    self.experts(encoder, s.input(source).0, gain, experts, y)?;
                    left
                }
                (
                    LayerStep::Norm(gain),
                    [LayerStep::DeltaRates { alpha, beta }, LayerStep::Linear(stack), after @ ..],
                ) => {
                    let (x, own) = (s.input(source).0, s.recurrent()?);
                    self.delta_rates(encoder, x, gain, [alpha, beta], own)?;
                    self.linear(encoder, s, Some(gain), stack, (after, source))?
                }
                (LayerStep::Norm(_) | LayerStep::Experts(_) | LayerStep::Add, _) => {
                    return Err(no_order());
                }
                // Steps that only models with recurrent layers have.
                _ => {
                    self.recurrent_step(encoder, (step, after), (&memory.layers[index], input), s)?
                }
            };
        }
        Ok(())
    }

    /// Records a step that only models with recurrent layers have; the delta rule with the linear
    /// layer after it.
    fn recurrent_step<'a>(
        &self,
        encoder: &mut Encoder,
        (step, after): (&'a GpuStep, &'a [GpuStep]),
        (memory, input): (&LayerMemory, &Input),
        s: &Scratch,
    ) -> Result<Left<'a>> {
        let own = s.recurrent()?;
        match (step, after, memory) {
            (LayerStep::KeepGate, ..) => {
                self.keep_gate(encoder, &s.qkv, own)?;
                Ok((after, Source::Stream))
            }
            (LayerStep::OutputGate, ..) => {
                recurrent::output_gate(encoder, &s.attended, &own.attention)?;
                Ok((after, Source::Attention))
            }
            (
                LayerStep::Delta(delta),
                [LayerStep::Linear(stack), after @ ..],
                LayerMemory::Recurrent(state),
            ) => {
                self.delta(encoder, state, input, delta, own)?;
                let (y, left) = s.output((after, Source::Attention));
                let eps = self.config.eps;
                side_by_side(encoder, &own.output, (None, eps), stack, &own.prepared, y)?;
                Ok(left)
            }
            _ => Err(no_order()),
        }
    }

    /// Records linear layers of one input, and the gate if one dispatch does both.
    fn linear<'a>(
        &self,
        encoder: &mut Encoder,
        s: &Scratch,
        gain: Option<&Tensor<f32>>,
        stack: &GpuStack,
        (after, source): Left<'a>,
    ) -> Result<Left<'a>> {
        let ((x, prepared), eps) = (s.input(source), self.config.eps);
        let norm = gain.map(|gain| (gain, eps));
        if let [LayerStep::Gate, after @ ..] = after
            && gated(encoder, x, norm, (stack, self.config.gate()), prepared, &s.hidden)?
        {
            return Ok((after, Source::Gate));
        }
        let (y, left) = s.output((after, source));
        side_by_side(encoder, x, (gain, eps), stack, prepared, y)?;
        Ok(left)
    }

    /// Records act(gate)·up, and the linear layer after it if one dispatch quantizes or rounds its
    /// input, too.
    fn gate<'a>(
        &self,
        encoder: &mut Encoder,
        s: &Scratch,
        after: &'a [GpuStep],
    ) -> Result<Left<'a>> {
        let (norm, next) = match after {
            [LayerStep::Norm(gain), next @ ..] => (Some((gain, self.config.eps)), next),
            next => (None, next),
        };
        let gate = self.config.gate();
        if let [LayerStep::Linear(Stack::One(w)), next @ ..] = next {
            let (y, left) = s.output((next, Source::Gate));
            match &s.gated {
                Prepared::Quantized(gated) => {
                    bitnet::gate_quantize_into(encoder, &s.gate_up, gate, norm, gated)?;
                    bitnet::bitlinear_quantized_into(encoder, gated, w, y)?;
                    return Ok(left);
                }
                Prepared::Floats { rounded, rotation: None }
                    if norm.is_none() && fits(rounded, w) =>
                {
                    bitnet::gate_block_float_into(encoder, &s.gate_up, gate, rounded)?;
                    bitnet::bitlinear_block_float_into(encoder, rounded, w, y)?;
                    return Ok(left);
                }
                Prepared::Floats { .. } => {}
            }
        }
        bitnet::gate(&s.gate_up, gate).forward_into(encoder, &s.hidden)?;
        Ok((after, Source::Gate))
    }

    /// Records rotary embedding and attention.
    fn attend(
        &self,
        encoder: &mut Encoder,
        index: usize,
        memory: &Memory,
        input: &Input,
        s: &Scratch,
    ) -> Result<()> {
        let local = memory.local_angles.as_ref().filter(|_| self.config.window(index).is_some());
        let angles = local.unwrap_or(&memory.angles);
        let LayerMemory::Attention(cache) = &memory.layers[index] else { return Err(no_hybrid()) };
        let attention = transformer::attention(&s.qkv, input.positions(), cache);
        let attention = attention.rope(angles).max_len(input.longest);
        let attention = if self.f16_attention { attention.f16() } else { attention };
        attention.forward_into(encoder, &s.attended)
    }
}

/// A family has its steps in an order that is not recorded.
fn no_order() -> Error {
    let what = "a norm is followed by neither a linear layer nor a sum, or a sum by itself";
    Error::Invalid { op: "model", what: what.into() }
}
