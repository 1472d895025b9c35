//! A model's weights on their way from files to where they are used.

use crate::{
    Error, PackedDense, PackedTernary, Result,
    bitnet::Gate,
    formats::{Activation, ModelConfig, ModelFile, RopeScaling},
    transformer::AttentionShape,
};

/// One decoder layer in host memory. Matrices that share their input are stacked.
pub(super) struct HostLayer {
    pub input_norm: Vec<f32>,
    /// q, k, v.
    pub qkv: PackedTernary,
    pub attention_norm: Option<Vec<f32>>,
    pub output: PackedTernary,
    pub post_norm: Vec<f32>,
    /// Gate, up.
    pub gate_up: PackedTernary,
    pub gated_norm: Option<Vec<f32>>,
    pub down: PackedTernary,
}

impl HostLayer {
    pub fn read(file: &dyn ModelFile, layer: usize) -> Result<Self> {
        let c = file.config();
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let (queries, keys) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let linear = |part: &str, rows, columns| {
            let matrix = file.linear(&name(part), rows, columns)?;
            expect(&name(part), (matrix.rows(), matrix.columns()), (rows, columns)).map(|()| matrix)
        };
        let vector = |part: &str, len| {
            let gains = file.vector(&name(part), len)?;
            expect(&name(part), (1, gains.len()), (1, len)).map(|()| gains)
        };
        let sub_norm = |part: &str, len| c.sub_norms.then(|| vector(part, len)).transpose();
        let q = linear("self_attn.q_proj", queries, c.hidden)?;
        let k = linear("self_attn.k_proj", keys, c.hidden)?;
        let v = linear("self_attn.v_proj", keys, c.hidden)?;
        let gate = linear("mlp.gate_proj", c.intermediate, c.hidden)?;
        let up = linear("mlp.up_proj", c.intermediate, c.hidden)?;
        Ok(Self {
            input_norm: vector("input_layernorm", c.hidden)?,
            qkv: PackedTernary::concat(&[&q, &k, &v])?,
            attention_norm: sub_norm("self_attn.attn_sub_norm", queries)?,
            output: linear("self_attn.o_proj", c.hidden, queries)?,
            post_norm: vector("post_attention_layernorm", c.hidden)?,
            gate_up: PackedTernary::concat(&[&gate, &up])?,
            gated_norm: sub_norm("mlp.ffn_sub_norm", c.intermediate)?,
            down: linear("mlp.down_proj", c.hidden, c.intermediate)?,
        })
    }
}

/// A source of weights may be anybody's.
fn expect(name: &str, found: (usize, usize), expected: (usize, usize)) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Invalid { op: "model", what: format!("`{name}` is {found:?}, not {expected:?}") })
}

/// What is not in a layer.
pub(super) struct HostEnds {
    pub embedding: PackedDense,
    pub norm: Vec<f32>,
    /// None where it is the embedding.
    pub head: Option<PackedDense>,
}

impl HostEnds {
    pub fn read(file: &dyn ModelFile, int8_head: bool) -> Result<Self> {
        let c = file.config();
        let dense = |name: &str, int8_head: bool| -> Result<PackedDense> {
            let matrix = file.dense(name, c.vocab, c.hidden)?;
            expect(name, (matrix.rows(), matrix.columns()), (c.vocab, c.hidden))?;
            Ok(if int8_head { matrix.quantize() } else { matrix })
        };
        let head = if c.tied_head { None } else { Some(dense("lm_head", int8_head)?) };
        // An untied embedding is read a row a token: there is nothing to gain.
        let embedding = dense("model.embed_tokens", int8_head && c.tied_head)?;
        let norm = file.vector("model.norm", c.hidden)?;
        expect("model.norm", (1, norm.len()), (1, c.hidden))?;
        Ok(Self { embedding, norm, head })
    }
}

impl ModelConfig {
    pub(super) fn attention(&self) -> AttentionShape {
        AttentionShape { heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    pub(super) fn gate(&self) -> Gate {
        match self.activation {
            Activation::Relu2 => Gate::Relu2,
            Activation::Silu => Gate::Silu,
        }
    }

    /// The rotary frequency of every pair of a head: theta^(-2i/D), stretched; in `f32`, as transformers computes them.
    pub(super) fn rope_frequencies(&self) -> Vec<f32> {
        let frequency = |i: usize| 1.0 / self.rope_theta.powf((2 * i) as f32 / self.head_dim as f32);
        (0..self.head_dim / 2).map(|i| self.rope_scaling.stretch(frequency(i))).collect()
    }
}

impl RopeScaling {
    fn stretch(self, frequency: f32) -> f32 {
        match self {
            Self::None => frequency,
            Self::Linear(factor) => frequency / factor,
            Self::Llama3 { factor, low, high, context } => {
                let wavelength = std::f32::consts::TAU / frequency;
                if wavelength > context / low {
                    frequency / factor
                } else if wavelength < context / high {
                    frequency
                } else {
                    let smooth = (context / wavelength - low) / (high - low);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }
}
