//! A model's configuration, whichever file it comes from.

use super::{
    embedding::EmbeddingDefaults,
    experts::MixtureOfExperts,
    format_error::{FormatError, unsupported},
    generation::GenerationDefaults,
    hadamard::Hadamard,
    hybrid::Hybrid,
    local_layers::LocalLayers,
    partial_rotary::PartialRotary,
    rope::RopeScaling,
};
use crate::{
    error::Result as CrateResult,
    limits::files::{MOST_LAYERS, MOST_SIZE},
    visibility::internal_fields,
    weights::ternary::packed::PackedTernary,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The activation function of the feed-forward block's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub enum Activation {
    /// relu(x)²: BitNet b1.58 2B4T.
    Relu2,
    /// x / (1 + e^-x): the Llama-like ternary models.
    Silu,
    /// GELU by its approximation with tanh: Gemma.
    GeluTanh,
}

/// The name in transformers' config.json.
impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Relu2 => "relu2",
            Self::Silu => "silu",
            Self::GeluTanh => "gelu_pytorch_tanh",
        })
    }
}

internal_fields! {
    /// What a model's files say of it: its dimensions, its tokens, how it is used.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[non_exhaustive]
    pub struct ModelConfig {
        /// The architecture's name in the file (`bitnet`, `llama`, `bitnet-b1.58`, ...).
        pub architecture: String,
        /// Width of the residual stream.
        pub hidden: usize,
        /// Width of the feed-forward block; in a mixture of experts, of an expert.
        pub intermediate: usize,
        /// Decoder layers.
        pub layers: usize,
        /// Query heads.
        pub heads: usize,
        /// Key and value heads; divides `heads`.
        pub kv_heads: usize,
        /// Width of a head.
        pub head_dim: usize,
        /// Tokens in the vocabulary.
        pub vocab: usize,
        /// The maximum context length, in tokens.
        pub context: usize,
        /// Whether linear layers quantize their activations to int8, as BitNet's do. Otherwise they
        /// are floats (W1.58A16).
        pub quantized_activations: bool,
        /// The token that begins a text.
        pub bos: Option<u32>,
        /// The tokens that end a text.
        pub eos: Vec<u32>,
        /// How its authors compute embeddings.
        pub embedding: EmbeddingDefaults,
    }
    internals {
        /// How its authors would have it generate.
        generation: GenerationDefaults,
        /// Added to the mean of squares in every RMSNorm.
        eps: f32,
        /// Base of the rotary frequencies.
        rope_theta: f32,
        /// How the rotary frequencies are scaled.
        rope_scaling: RopeScaling,
        /// What each of them is divided by, `head_dim / 2` numbers: with [`RopeScaling::LongRope`],
        /// else none.
        rope_factors: Vec<f32>,
        /// Multiplies the embedding's rows.
        embedding_scale: f32,
        /// Multiplies queries, beyond the usual 1 / √head_dim.
        query_scale: f32,
        /// Multiplies what each sublayer adds to the residual stream.
        residual_scale: f32,
        /// Multiplies the logits.
        logit_scale: f32,
        /// The activation function of the feed-forward gate.
        activation: Activation,
        /// Whether there are norms before the attention's output projection and before the
        /// feed-forward's down projection.
        sub_norms: bool,
        /// Whether there is a norm before every linear layer, after the norm that its sublayer
        /// begins with.
        projection_norms: bool,
        /// The layers that see a window of the text only, where there are some.
        local: Option<LocalLayers>,
        /// Whether the LM head shares the embedding's weights.
        tied_head: bool,
        /// Whether weights are stored rotated.
        hadamard: Option<Hadamard>,
        /// The recurrent layers, where there are some.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hybrid: Option<Hybrid>,
        /// The part of each head that rotates, where not all of it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rotary: Option<PartialRotary>,
        /// How a token's experts are chosen, in a mixture of experts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        experts: Option<MixtureOfExperts>,
    }
}

impl ModelConfig {
    /// Checks that sizes are in range, that heads divide by key-value heads, and that tokens are in
    /// the vocabulary.
    pub(crate) fn checked(self) -> Result<Self, String> {
        self.check_sizes()?;
        self.check_rotary()?;
        let scales =
            [self.embedding_scale, self.query_scale, self.residual_scale, self.logit_scale];
        if let Some(scale) = scales.into_iter().find(|scale| !(*scale > 0.0 && scale.is_finite())) {
            return Err(format!(
                "the embedding, the queries, the residual stream or the logits are scaled by {scale}; a positive number is needed"
            ));
        }
        self.local.as_ref().map_or(Ok(()), |local| local.check(self.layers))?;
        self.check_hybrid()?;
        self.check_experts()?;
        self.rotary.map_or(Ok(()), |rotary| rotary.check(self.head_dim, self.rope_scaling))?;
        let widths = self.input_widths();
        self.hadamard
            .as_ref()
            .map_or(Ok(()), |hadamard| hadamard.check(&widths, self.quantized_activations))?;
        match self.bos.iter().chain(&self.eos).find(|&&id| id as usize >= self.vocab) {
            Some(id) => Err(format!("token {id} is beyond the vocabulary of {}", self.vocab)),
            None => Ok(self),
        }
    }

    /// The widths of what enters linear layers.
    pub(crate) fn input_widths(&self) -> Vec<usize> {
        let own = self.hybrid.as_ref().map(Hybrid::values);
        let mut widths = vec![self.hidden, self.heads * self.head_dim, self.intermediate];
        widths.extend(own.filter(|own| !widths.contains(own)));
        widths
    }

    /// Returns whether this layer is recurrent.
    pub(crate) fn is_recurrent(&self, layer: usize) -> bool {
        self.hybrid.as_ref().is_some_and(|hybrid| hybrid.recurrent.get(layer) == Some(&true))
    }

    fn check_hybrid(&self) -> Result<(), String> {
        let Some(hybrid) = &self.hybrid else { return Ok(()) };
        hybrid.check(self.layers, self.head_dim)?;
        if self.rope_scaling != RopeScaling::None {
            return Err(format!(
                "rotary scaling, {}, beside recurrent layers is not supported",
                self.rope_scaling
            ));
        }
        if self.sub_norms || self.projection_norms || self.local.is_some() {
            return Err(
                "sub-norms, norms of linear layers, or windows beside recurrent layers are not supported"
                    .into(),
            );
        }
        Ok(())
    }

    /// Checks that the model can be written in another format.
    pub(crate) fn check_written(&self) -> Result<(), String> {
        match self.hybrid {
            None => Ok(()),
            Some(_) => Err("has recurrent layers, which are not written in another format".into()),
        }
    }

    /// Moves the rows of queries and keys where a part of a head rotates.
    pub(super) fn rotary_rows(
        &self,
        name: &str,
        matrix: PackedTernary,
    ) -> CrateResult<PackedTernary> {
        match self.rotary {
            Some(rotary) => rotary.rows(name, matrix, self.head_dim),
            None => Ok(matrix),
        }
    }

    /// Moves the gains of heads where a part of them rotates.
    pub(super) fn rotary_gains(&self, name: &str, gains: Vec<f32>) -> Vec<f32> {
        match self.rotary {
            Some(rotary) => rotary.gains(name, gains, self.head_dim),
            None => gains,
        }
    }

    /// The family has experts, or the configuration has none.
    pub(super) fn check_experts(&self) -> Result<(), String> {
        match (self.experts, self.family().has_experts()) {
            (Some(experts), true) => {
                experts.check()?;
                for (what, present) in [
                    ("norms before linear layers", self.projection_norms),
                    ("sub-norms", self.sub_norms),
                    ("rotated weights", self.hadamard.is_some()),
                ] {
                    if present {
                        return Err(format!("a mixture of experts with {what} is not supported"));
                    }
                }
                Ok(())
            }
            (None, false) => Ok(()),
            (Some(_), false) => Err(format!("`{}` has no experts", self.architecture)),
            (None, true) => Err("the number of experts is missing".into()),
        }
    }

    fn check_sizes(&self) -> Result<(), String> {
        let sizes = [
            ("the hidden size", self.hidden),
            ("the feed-forward size", self.intermediate),
            ("the number of heads", self.heads),
            ("the number of key-value heads", self.kv_heads),
            ("the head size", self.head_dim),
            ("the vocabulary", self.vocab),
            ("the context", self.context),
        ];
        if let Some((what, size)) =
            sizes.into_iter().find(|&(_, size)| size == 0 || size > MOST_SIZE)
        {
            return Err(format!("{what} is {size}; 1 to {MOST_SIZE} are supported"));
        }
        if self.layers == 0 || self.layers > MOST_LAYERS {
            return Err(format!("{} layers; 1 to {MOST_LAYERS} are supported", self.layers));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "{} heads do not divide into {} key-value heads",
                self.heads, self.kv_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!(
                "the head size {} is odd; rotary pairs need an even one",
                self.head_dim
            ));
        }
        if self.heads.saturating_mul(self.head_dim) > MOST_SIZE {
            return Err(format!(
                "{} heads of size {} are over {MOST_SIZE} features",
                self.heads, self.head_dim
            ));
        }
        if !(self.eps >= 0.0 && self.eps <= 1.0) {
            return Err(format!("the norms' epsilon is {}; 0 to 1 is supported", self.eps));
        }
        Ok(())
    }

    fn check_rotary(&self) -> Result<(), String> {
        if !(self.rope_theta >= 1.0 && self.rope_theta.is_finite()) {
            return Err(format!(
                "the rotary base is {}; a finite number of at least 1 is needed",
                self.rope_theta
            ));
        }
        self.rope_scaling.check()?;
        let factors = &self.rope_factors;
        let expected = if matches!(self.rope_scaling, RopeScaling::LongRope { .. }) {
            self.head_dim / 2
        } else {
            0
        };
        if factors.len() != expected
            || factors.iter().any(|&factor| !(factor > 0.0 && factor.is_finite()))
        {
            return Err(format!(
                "{} rotary factors; {expected} positive ones are needed",
                factors.len()
            ));
        }
        if self.rope_theta == 1.0 && matches!(self.rope_scaling, RopeScaling::Yarn { .. }) {
            return Err("the rotary base is 1; YaRN needs frequencies that differ".into());
        }
        Ok(())
    }
}

impl Activation {
    pub(super) fn from_name(name: &str) -> Result<Self, FormatError> {
        match name {
            "relu2" => Ok(Self::Relu2),
            "silu" => Ok(Self::Silu),
            "gelu_pytorch_tanh" => Ok(Self::GeluTanh),
            other => unsupported(format!(
                "hidden_act `{other}` is not supported; `relu2`, `silu` and `gelu_pytorch_tanh` are"
            )),
        }
    }
}
