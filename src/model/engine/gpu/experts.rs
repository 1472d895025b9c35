//! Mixtures of experts on a GPU. On tensor cores, rows of a prompt that use the same expert share
//! its weights; elsewhere a long prompt reads them once for each row.

use super::graph::GpuModel;
use crate::{
    error::{Error, Result},
    formats::{experts::MixtureOfExperts, tensors::Experts},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    ops::{
        bitnet::{self, Chosen, ExpertActivations, SortedExperts},
        tensor,
        transformer::{self, RmsNorm, Route},
    },
    weights::{
        dense::{DenseElement, DenseMatrix},
        ternary::matrix::TernaryMatrix,
    },
};

pub(super) type GpuExperts = Experts<TernaryMatrix, Tensor<f32>>;

/// Intermediate results of a mixture of experts, in buffers that all layers share. `uses` are rows
/// of tokens and their experts.
pub(super) struct ExpertScratch {
    config: MixtureOfExperts,
    /// Scales of the router's rows, `[experts]`.
    ones: Tensor<f32>,
    /// `[rows, hidden]`
    normed: Tensor<f32>,
    /// What the experts take of it.
    input: ExpertActivations,
    /// `[rows, experts]`
    logits: Tensor<f32>,
    /// Experts of each row, and their weights: `[rows, used]`.
    chosen: Tensor<u32>,
    weights: Tensor<f32>,
    /// Uses by their expert, where activations are floats and products are of tiles.
    sorted: Option<SortedExperts>,
    /// `[uses, 2 · intermediate]`
    gate_up: Tensor<f32>,
    /// `[uses, intermediate]`
    gated: Tensor<f32>,
    hidden: ExpertActivations,
    /// `[uses, hidden]`
    output: Tensor<f32>,
}

impl GpuModel {
    /// Allocates intermediate results of this many rows, where the model has experts.
    pub(super) fn expert_scratch(&self, rows: usize) -> Result<Option<ExpertScratch>> {
        let first = self.layers.first().and_then(|layer| layer.experts());
        let (Some(experts), Some(config)) = (first, self.config.experts) else { return Ok(None) };
        let (c, context, uses) = (&self.config, &self.context, rows * config.used);
        // Both kinds of matrices have the same group.
        let sorted = match c.quantized_activations {
            true => None,
            false => SortedExperts::uninit(context, uses, (&experts.gate_up, config.count))?,
        };
        let kinds = (c.quantized_activations, sorted.is_some());
        let prepared =
            |shape, w: &TernaryMatrix| ExpertActivations::uninit(context, shape, w.group(), kinds);
        Ok(Some(ExpertScratch {
            config,
            ones: context.upload(&vec![1.0; config.count], [config.count])?,
            normed: Tensor::uninit(context, [rows, c.hidden])?,
            input: prepared([rows, c.hidden], &experts.gate_up)?,
            logits: Tensor::uninit(context, [rows, config.count])?,
            chosen: Tensor::uninit(context, [rows, config.used])?,
            weights: Tensor::uninit(context, [rows, config.used])?,
            sorted,
            gate_up: Tensor::uninit(context, [uses, 2 * c.intermediate])?,
            gated: Tensor::uninit(context, [uses, c.intermediate])?,
            hidden: prepared([uses, c.intermediate], &experts.down)?,
            output: Tensor::uninit(context, [uses, c.hidden])?,
        }))
    }

    /// Records a norm and the experts of each row of `x`, whose sum is added to `y` or stored there.
    pub(super) fn experts(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<f32>,
        gain: &Tensor<f32>,
        (experts, s): (&GpuExperts, Option<&ExpertScratch>),
        y: Out<'_, f32>,
    ) -> Result<()> {
        let s = s.ok_or_else(none)?;
        let count = s.config.count;
        RmsNorm::new(gain, self.config.eps).forward_into(encoder, x, &s.normed)?;
        let router = dense(encoder, &experts.router, &s.ones)?;
        transformer::dense_gemv(&s.normed, &router).forward_into(encoder, &s.logits)?;
        let route: Route<'_> = transformer::route(&s.logits, s.config.used);
        let route = if s.config.normalized { route } else { route.of_all() };
        route.forward_into(encoder, &s.chosen, &s.weights)?;
        s.sorted.as_ref().map_or(Ok(()), |sorted| sorted.sort(encoder, &s.chosen))?;
        let chosen = Chosen { experts: &s.chosen, sorted: s.sorted.as_ref() };
        s.input.convert(encoder, &s.normed)?;
        let gate_up = Out::set(&s.gate_up);
        let w = (&experts.gate_up, count);
        bitnet::bitlinear_experts_into(encoder, &s.input, w, chosen, gate_up)?;
        if let Some(limit) = s.config.gate_limit {
            bitnet::clamp_gates(encoder, &s.gate_up, limit)?;
        }
        bitnet::gate(&s.gate_up, self.config.gate()).forward_into(encoder, &s.gated)?;
        s.hidden.convert(encoder, &s.gated)?;
        let output = Out::set(&s.output);
        let w = (&experts.down, count);
        bitnet::bitlinear_experts_into(encoder, &s.hidden, w, chosen, output)?;
        bitnet::experts_sum(&s.output, &s.weights).forward_into(encoder, y)
    }
}

/// A matrix of floats with as many rows as there are `ones`, padded where its rows are not whole
/// groups of sixteen bytes.
pub(super) fn dense(
    encoder: &mut Encoder,
    numbers: &Tensor<f32>,
    ones: &Tensor<f32>,
) -> Result<DenseMatrix> {
    let rows = ones.len();
    let columns = numbers.len() / rows.max(1);
    let numbers = numbers.reshape([rows, columns])?;
    let padded = DenseElement::F32.row_words(columns);
    let numbers = match padded == columns {
        true => numbers,
        false => tensor::pad_rows(&numbers, padded).forward(encoder)?,
    };
    Ok(DenseMatrix::of_floats(&numbers, columns, ones))
}

/// A layer has experts, and the configuration says nothing of them.
fn none() -> Error {
    Error::Invalid { op: "model", what: "the configuration has no experts".into() }
}
