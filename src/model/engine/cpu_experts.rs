//! Mixtures of experts on the CPU. Only the weights of used experts are read.

use crate::{
    cpu::{self, isa::Isa},
    error::{Error, Result},
    formats::{ModelConfig, tensors::Experts},
    ops::{bitnet::host_activations::HostActivations, host},
    weights::ternary::interleaved::InterleavedTernary,
};

/// A token, and which of its experts it is.
type Use = (usize, usize);

/// What of an expert is to be added to a token.
struct Share {
    token: usize,
    rank: usize,
    output: Vec<f32>,
}

/// What computes the experts of a model.
pub(super) struct ExpertModel<'a> {
    pub config: &'a ModelConfig,
    pub isa: Isa,
}

impl ExpertModel<'_> {
    /// The sum of the used experts of each token, `[tokens, hidden]`: of an expert
    /// weight·down(act(gate)·up), added in the order of the router's logits, the largest first.
    /// What comes of a token does not depend on others.
    ///
    /// # Errors
    /// [`Error::Invalid`] for router logits that are not finite.
    pub(super) fn forward(
        &self,
        x: &[f32],
        experts: &Experts<InterleavedTernary, Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let (hidden, config) = (self.config.hidden, self.config.experts.ok_or_else(none)?);
        let tokens = x.len() / hidden.max(1);
        let logits = host::router_logits(x, &experts.router, hidden);
        let chosen = logits
            .chunks_exact(config.count)
            .map(|logits| host::route(logits, config.used, config.normalized))
            .collect::<Result<Vec<_>>>()?;
        let mut uses: Vec<Vec<Use>> = vec![Vec::new(); config.count];
        for (token, chosen) in chosen.iter().enumerate() {
            for (rank, &(expert, _)) in chosen.iter().enumerate() {
                uses[expert as usize].push((token, rank));
            }
        }
        let quantized = self.config.quantized_activations;
        let xq = quantized.then(|| host::quantize_activations(x, tokens, hidden)).transpose()?;
        let mut shares = Vec::with_capacity(tokens * config.used);
        for (expert, uses) in uses.iter().enumerate().filter(|(_, uses)| !uses.is_empty()) {
            let (gate_up, down) = (experts.gate_up.part(expert), experts.down.part(expert));
            let outputs = match &xq {
                Some(xq) => self.quantized_expert(&rows_of(xq, uses), &gate_up, &down)?,
                None => {
                    let rows = uses.iter().flat_map(|&(token, _)| &x[token * hidden..][..hidden]);
                    self.float_expert(rows.copied().collect(), &gate_up, &down)?
                }
            };
            shares.extend(
                uses.iter()
                    .zip(outputs.chunks_exact(hidden))
                    .map(|(&(token, rank), output)| Share { token, rank, output: output.to_vec() }),
            );
        }
        shares.sort_by_key(|share| (share.token, share.rank));
        let mut y = vec![0f32; x.len()];
        for Share { token, rank, output } in shares {
            let (weight, y) = (chosen[token][rank].1, &mut y[token * hidden..][..hidden]);
            y.iter_mut().zip(output).for_each(|(y, output)| *y += weight * output);
        }
        Ok(y)
    }

    /// Clamps gates and ups, where the model does.
    fn clamp(&self, gate_up: &mut [f32]) {
        if let Some(limit) = self.config.experts.and_then(|experts| experts.gate_limit) {
            host::clamp_gates(gate_up, self.config.intermediate, limit);
        }
    }

    /// An expert of rows in floats.
    fn float_expert(
        &self,
        x: Vec<f32>,
        gate_up: &InterleavedTernary,
        down: &InterleavedTernary,
    ) -> Result<Vec<f32>> {
        let mut gate_up = cpu::ternary_float::bitlinear(x, gate_up)?;
        self.clamp(&mut gate_up);
        let gated = host::gate(&gate_up, self.config.intermediate, self.config.gate())?;
        cpu::ternary_float::bitlinear(gated, down)
    }

    /// An expert of quantized rows.
    fn quantized_expert(
        &self,
        x: &HostActivations,
        gate_up: &InterleavedTernary,
        down: &InterleavedTernary,
    ) -> Result<Vec<f32>> {
        let mut gate_up = cpu::ternary::bitlinear(self.isa, x, gate_up)?;
        self.clamp(&mut gate_up);
        let (width, gate) = (self.config.intermediate, self.config.gate());
        let gated = host::gate_quantize(&gate_up, width, gate, None)?;
        cpu::ternary::bitlinear(self.isa, &gated, down)
    }
}

/// The rows of these tokens.
fn rows_of(x: &HostActivations, uses: &[Use]) -> HostActivations {
    HostActivations {
        tokens: uses.len(),
        features: x.features,
        codes: uses.iter().flat_map(|&(token, _)| x.row(token)).copied().collect(),
        scales: uses.iter().map(|&(token, _)| x.scales[token]).collect(),
    }
}

/// A layer has experts, and the configuration says nothing of them.
fn none() -> Error {
    Error::Invalid { op: "model", what: "the configuration has no experts".into() }
}
