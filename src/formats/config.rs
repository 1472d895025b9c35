//! A model's configuration, and reading it from config.json.

use super::{
    embedding::EmbeddingDefaults,
    families,
    gemma::{self, LocalLayers},
    generation::GenerationDefaults,
    hadamard::Hadamard,
    json::{Keys, token_ids},
    problem::{Problem, unsupported},
};
use crate::limits::files::{MOST_LAYERS, MOST_SIZE};
use serde::{Deserialize, Serialize};
use serde_json::Value;
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

/// How rotary frequencies are scaled for a context longer than the one the model was trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not scaled.
    None,
    /// All frequencies are divided by this factor.
    Linear(f32),
    /// As in Llama 3.1: low frequencies are divided by `factor`, high ones kept, with a ramp
    /// between.
    Llama3 {
        /// Divides the low frequencies.
        factor: f32,
        /// Wavelengths above `context / low` count as low frequencies.
        low: f32,
        /// Wavelengths below `context / high` count as high frequencies.
        high: f32,
        /// The context length of the original training, in tokens.
        context: f32,
    },
    /// YaRN (Peng et al. 2023, arXiv:2309.00071), as transformers computes it: frequencies that
    /// turn less than `slow` times in the original context are divided by `factor`, those that turn
    /// more than `fast` times kept, with a ramp between by the pair's number; cosines and sines are
    /// multiplied.
    Yarn {
        /// Divides the low frequencies.
        factor: f32,
        /// The context length of the original training, in tokens.
        context: f32,
        /// Multiplies cosines and sines, and so queries and keys.
        attention: f32,
        /// Turns above which a frequency is kept.
        fast: f32,
        /// Turns below which a frequency is divided.
        slow: f32,
        /// Are the ends of the ramp rounded outwards to whole pairs?
        truncate: bool,
    },
    /// LongRoPE (Ding et al. 2024, arXiv:2402.13753): each frequency is divided by one of
    /// [`ModelConfig::rope_factors`]; cosines and sines are multiplied.
    LongRope {
        /// Multiplies cosines and sines, and so queries and keys.
        attention: f32,
    },
}

/// The method and its factor.
impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Linear(factor) => write!(f, "linear by {factor}"),
            Self::Llama3 { factor, .. } => write!(f, "Llama 3.1 by {factor}"),
            Self::Yarn { factor, .. } => write!(f, "YaRN by {factor}"),
            Self::LongRope { .. } => f.write_str("LongRoPE"),
        }
    }
}

/// The dimensions and hyperparameters of a transformer, whichever file format they came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ModelConfig {
    /// The architecture's name in the file (`bitnet`, `llama`, `bitnet-b1.58`, ...).
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward block.
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
    /// Added to the mean of squares in every RMSNorm.
    pub eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// How the rotary frequencies are scaled.
    pub rope_scaling: RopeScaling,
    /// What each of them is divided by, `head_dim / 2` numbers: with [`RopeScaling::LongRope`],
    /// else none.
    pub rope_factors: Vec<f32>,
    /// Multiplies the embedding's rows.
    pub embedding_scale: f32,
    /// Multiplies what each half of a block adds to the residual stream.
    pub residual_scale: f32,
    /// Multiplies the logits.
    pub logit_scale: f32,
    /// The activation function of the feed-forward gate.
    pub activation: Activation,
    /// Are there norms before the attention's output projection and before the feed-forward's down
    /// projection?
    pub sub_norms: bool,
    /// Is there a norm before every linear layer of a block, after the one that its half begins
    /// with?
    pub projection_norms: bool,
    /// Are there norms of every query and key head, before they are rotated?
    pub qk_norms: bool,
    /// Are there norms of what each half of a block adds, before it is added to the residual
    /// stream?
    #[serde(default)]
    pub post_norms: bool,
    /// The layers that see a window of the text only, where there are some.
    pub local: Option<LocalLayers>,
    /// Do linear layers quantise their activations to 8 bits, as BitNet's do? Else these are floats
    /// (W1.58A16).
    pub quantized_activations: bool,
    /// Does the head share the embedding's weights?
    pub tied_head: bool,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end a text.
    pub eos: Vec<u32>,
    /// How its authors would have it generate.
    pub generation: GenerationDefaults,
    /// How its authors would have it embed texts.
    pub embedding: EmbeddingDefaults,
    /// Are weights stored rotated?
    pub hadamard: Option<Hadamard>,
}

impl ModelConfig {
    /// Reads a config.json of `model_type` `bitnet`, `llama`, `qwen3`, `minicpm` or `gemma3_text`.
    /// Missing keys get the defaults of transformers. For `llama`, config.json does not mention
    /// sub-norms: they are off here, and [`Checkpoint`](super::Checkpoint) turns them on if their
    /// tensors exist. Activations are quantised, but for files of MLX and for `qwen3`, `minicpm`
    /// and `gemma3_text`, unless they say that they are BitNets. Gemma's `embedding_scale` is what
    /// files in f32 have; [`Checkpoint`](super::Checkpoint) rounds it to the embedding's type.
    ///
    /// # Errors
    /// A message that names the key: a size that is missing or out of range; a model graph that is
    /// not supported.
    pub fn from_json(json: &Value) -> Result<Self, Problem> {
        let bitnet = json["model_type"] != "bitnet" && is_bitnet(json);
        let json = Keys(json.as_object().ok_or("is not a JSON object")?);
        let architecture = json.text("model_type")?.ok_or("has no model_type")?;
        let defaults = match architecture {
            "bitnet" => &BITNET,
            "llama" => &LLAMA,
            "qwen3" => &QWEN3,
            "minicpm" => &MINICPM,
            "gemma3_text" => &GEMMA3,
            other => {
                return families::refuse(
                    "model_type",
                    other,
                    "`bitnet`, `llama`, `qwen3`, `minicpm` and `gemma3_text`",
                );
            }
        };
        check_graph(json)?;
        let layers = json.size("num_hidden_layers", None)?;
        let (mut local, flat) = (
            None,
            if defaults.gemma { gemma::with_global_rope(json)? } else { serde_json::Map::new() },
        );
        if defaults.gemma {
            gemma::check_graph(json)?;
            local = LocalLayers::from_json(json, layers)?;
        } else if let Some(kind) = json
            .get("layer_types")
            .and_then(|kinds| kinds.as_array()?.iter().find(|&kind| kind != "full_attention"))
        {
            return unsupported(format!(
                "layer_types has {kind}; only \"full_attention\" is supported"
            ));
        }
        let json = if defaults.gemma { Keys(&flat) } else { json };
        let context = json.size("max_position_embeddings", Some(defaults.context))?;
        let (hidden, heads) =
            (json.size("hidden_size", None)?, json.size("num_attention_heads", None)?);
        // A null says that there are as many as heads.
        let kv_heads = defaults
            .kv_heads
            .filter(|_| !json.0.contains_key("num_key_value_heads"))
            .unwrap_or(heads);
        let vocab = json.size("vocab_size", None)?;
        let rope = Rope::from_json(json, defaults, context)?;
        let scales = match architecture {
            "minicpm" => minicpm_scales(json, hidden, layers)?,
            "gemma3_text" => [gemma::embedding_scale(hidden, None), 1.0, 1.0],
            _ => [1.0; 3],
        };
        let eos = match json.0.get("eos_token_id") {
            Some(ids) => token_ids(ids)?,
            None => defaults.eos.into_iter().collect(),
        };
        let config = Self {
            architecture: architecture.to_owned(),
            hidden,
            intermediate: json.size("intermediate_size", None)?,
            layers,
            heads,
            kv_heads: json.size("num_key_value_heads", Some(kv_heads))?,
            head_dim: json.size("head_dim", Some(defaults.head_dim.unwrap_or(hidden / heads)))?,
            vocab,
            context,
            eps: json.float("rms_norm_eps", defaults.eps)?,
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            rope_factors: rope.factors,
            embedding_scale: scales[0],
            residual_scale: scales[1],
            logit_scale: scales[2],
            activation: Activation::from_name(
                json.text(if defaults.gemma { "hidden_activation" } else { "hidden_act" })?
                    .unwrap_or(defaults.activation),
            )?,
            sub_norms: defaults.sub_norms,
            projection_norms: projection_norms(json, defaults)?,
            qk_norms: defaults.qk_norms,
            post_norms: defaults.gemma,
            local,
            quantized_activations: bitnet
                || (defaults.quantized_activations && json.get("quantization").is_none()),
            tied_head: json.flag("tie_word_embeddings")?
                || defaults.gemma && json.get("tie_word_embeddings").is_none(),
            bos: json.token("bos_token_id", defaults.bos)?,
            eos,
            generation: GenerationDefaults::default(),
            embedding: EmbeddingDefaults::default(),
            hadamard: None,
        };
        Ok(config.known_tokens(defaults).checked()?)
    }

    /// Drops default BOS and EOS ids that are beyond the vocabulary: transformers writes its
    /// defaults into every config.json, even for a smaller vocabulary. Any other id out of range
    /// stays, and [`Self::checked`] refuses it.
    fn known_tokens(mut self, defaults: &Defaults) -> Self {
        let vocab = self.vocab;
        self.bos = self.bos.filter(|&id| (id as usize) < vocab || Some(id) != defaults.bos);
        self.eos.retain(|&id| (id as usize) < vocab || Some(id) != defaults.eos);
        self
    }

    /// Checks that sizes are in range, that heads divide by key-value heads, and that tokens are in
    /// the vocabulary.
    pub(crate) fn checked(self) -> Result<Self, String> {
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
        if !(self.rope_theta >= 1.0 && self.rope_theta.is_finite()) {
            return Err(format!(
                "the rotary base is {}; a finite number of at least 1 is needed",
                self.rope_theta
            ));
        }
        self.rope_scaling.check()?;
        let factors = &self.rope_factors;
        let wanted = if matches!(self.rope_scaling, RopeScaling::LongRope { .. }) {
            self.head_dim / 2
        } else {
            0
        };
        if factors.len() != wanted
            || factors.iter().any(|&factor| !(factor > 0.0 && factor.is_finite()))
        {
            return Err(format!(
                "{} rotary factors; {wanted} positive ones are needed",
                factors.len()
            ));
        }
        let scales = [self.embedding_scale, self.residual_scale, self.logit_scale];
        if let Some(scale) = scales.into_iter().find(|scale| !(*scale > 0.0 && scale.is_finite())) {
            return Err(format!(
                "the embedding, the residual stream or the logits are scaled by {scale}; a positive number is needed"
            ));
        }
        self.local.as_ref().map_or(Ok(()), |local| local.check(self.layers))?;
        if self.rope_theta == 1.0 && matches!(self.rope_scaling, RopeScaling::Yarn { .. }) {
            return Err("the rotary base is 1; YaRN needs frequencies that differ".into());
        }
        let widths = [self.hidden, self.heads * self.head_dim, self.intermediate];
        self.hadamard
            .as_ref()
            .map_or(Ok(()), |hadamard| hadamard.check(&widths, self.quantized_activations))?;
        match self.bos.iter().chain(&self.eos).find(|&&id| id as usize >= self.vocab) {
            Some(id) => Err(format!("token {id} is beyond the vocabulary of {}", self.vocab)),
            None => Ok(self),
        }
    }
}

impl Activation {
    fn from_name(name: &str) -> Result<Self, Problem> {
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

impl RopeScaling {
    fn check(&self) -> Result<(), String> {
        let sound = |value: f32| value > 0.0 && value.is_finite();
        match *self {
            Self::None => Ok(()),
            Self::Linear(factor) | Self::LongRope { attention: factor } if sound(factor) => Ok(()),
            Self::Llama3 { factor, low, high, context }
                if [factor, low, high, context].into_iter().all(sound) && low < high =>
            {
                Ok(())
            }
            Self::Yarn { factor, context, attention, fast, slow, .. }
                if [factor, context, attention, fast, slow].into_iter().all(sound) =>
            {
                Ok(())
            }
            _ => Err(format!("rotary scaling {self:?} has a parameter out of range")),
        }
    }
}

/// The defaults of transformers for missing keys.
struct Defaults {
    activation: &'static str,
    sub_norms: bool,
    qk_norms: bool,
    quantized_activations: bool,
    /// Is it what Gemma 3 is, beside?
    gemma: bool,
    /// None where there are as many as heads.
    kv_heads: Option<usize>,
    /// None where it follows from the hidden size.
    head_dim: Option<usize>,
    context: usize,
    theta: f32,
    eps: f32,
    bos: Option<u32>,
    eos: Option<u32>,
}

static BITNET: Defaults = Defaults {
    activation: "relu2",
    sub_norms: true,
    qk_norms: false,
    quantized_activations: true,
    gemma: false,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    theta: 500_000.0,
    eps: 1e-5,
    bos: Some(128_000),
    eos: Some(128_001),
};
static LLAMA: Defaults = Defaults {
    activation: "silu",
    sub_norms: false,
    theta: 10_000.0,
    eps: 1e-6,
    bos: Some(1),
    eos: Some(2),
    ..BITNET
};
static QWEN3: Defaults = Defaults {
    activation: "silu",
    sub_norms: false,
    qk_norms: true,
    quantized_activations: false,
    gemma: false,
    kv_heads: Some(32),
    head_dim: Some(128),
    context: 32_768,
    theta: 10_000.0,
    eps: 1e-6,
    bos: None,
    eos: None,
};

static MINICPM: Defaults = Defaults {
    activation: "silu",
    sub_norms: false,
    quantized_activations: false,
    theta: 10_000.0,
    eps: 1e-6,
    bos: Some(1),
    eos: Some(2),
    ..BITNET
};

static GEMMA3: Defaults = Defaults {
    activation: "gelu_pytorch_tanh",
    gemma: true,
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 131_072,
    theta: 1_000_000.0,
    bos: Some(2),
    eos: Some(1),
    ..QWEN3
};

/// What MiniCPM's embedding, residual stream and logits are multiplied by.
fn minicpm_scales(json: Keys<'_>, hidden: usize, layers: usize) -> Result<[f32; 3], Problem> {
    // Beyond some thousand tokens, it attends to some only.
    if json.get("sparse_config").is_some() {
        return unsupported(
            "sparse_config is not supported: only attention to the whole context is",
        );
    }
    let depth = json.float("scale_depth", 1.0)?;
    let scales = [
        json.float("scale_emb", 1.0)?,
        depth / (layers as f32).sqrt(),
        json.float("dim_model_base", 1.0)? / hidden as f32,
    ];
    Ok(scales)
}

/// Refuses options that would change the model's graph.
fn check_graph(json: Keys<'_>) -> Result<(), Problem> {
    for key in ["attention_bias", "mlp_bias"] {
        if json.flag(key)? {
            return unsupported(format!("{key} is not supported: only layers without biases are"));
        }
    }
    // MiniCPM and Llama have such models under the same name.
    for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
        if let Some(count) = json.get(key).filter(|count| count.as_u64() != Some(0)) {
            return unsupported(format!("{key} is {count}: mixtures of experts are not supported"));
        }
    }
    if json.get("vision_config").is_some() {
        return unsupported("has a vision_config: models that see images are not supported");
    }
    let quantization = json.get("quantization_config").and_then(Value::as_object).map(Keys);
    match quantization.map(|quantization| quantization.text("quant_method")).transpose()?.flatten()
    {
        None | Some("bitnet") => {}
        Some(other) => {
            return unsupported(format!(
                "quantization_config.quant_method `{other}` is not supported; `bitnet` is"
            ));
        }
    }
    quantization.map_or(Ok(()), all_converted)?;
    // A model of embeddings may have been trained so.
    if json.get("is_causal").is_some() && !json.flag("is_causal")?
        || json.flag("use_bidirectional_attention")?
    {
        return unsupported(
            "attention to tokens that follow is not supported: only causal attention is",
        );
    }
    // Named by Qwen's, and used where this is set.
    if json.flag("use_sliding_window")? {
        return unsupported(
            "use_sliding_window is not supported: only attention to the whole context is",
        );
    }
    whole_heads(json)
}

/// Refuses a quantization_config that leaves layers in floats, which would be quantised as the
/// others are. The head and the embedding always are in floats.
fn all_converted(quantization: Keys<'_>) -> Result<(), Problem> {
    const KEY: &str = "modules_to_not_convert";
    let Some(list) = quantization.get(KEY) else { return Ok(()) };
    let names = list
        .as_array()
        .and_then(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let names = names.ok_or_else(|| {
        format!("quantization_config.{KEY} is {list}; a list of strings is needed")
    })?;
    let is_end = |name: &str| matches!(name.rsplit('.').next(), Some("lm_head" | "embed_tokens"));
    match names.into_iter().find(|name| !is_end(name)) {
        Some(name) => unsupported(format!(
            "quantization_config.{KEY} has `{name}`: layers in floats beside ternary ones are not supported, but for the head and the embedding"
        )),
        None => Ok(()),
    }
}

/// Has every linear layer a norm of its own, by quantization_config?
fn projection_norms(json: Keys<'_>, defaults: &Defaults) -> Result<bool, Problem> {
    let Some(quantization) = json.get("quantization_config").and_then(Value::as_object).map(Keys)
    else {
        return Ok(false);
    };
    if !quantization.flag("use_rms_norm")? {
        return Ok(false);
    }
    let (eps, own) =
        (json.float("rms_norm_eps", defaults.eps)?, quantization.float("rms_norm_eps", 1e-6)?);
    if eps != own {
        return unsupported(format!(
            "quantization_config.rms_norm_eps is {own}, and {eps} that of the other norms; one for all is supported"
        ));
    }
    match defaults.sub_norms {
        true => unsupported(
            "quantization_config.use_rms_norm is not supported where there are sub-norms",
        ),
        false => Ok(true),
    }
}

fn whole_heads(json: Keys<'_>) -> Result<(), Problem> {
    match json.float("partial_rotary_factor", 1.0)? {
        1.0 => Ok(()),
        part => unsupported(format!(
            "partial_rotary_factor {part} is not supported: only rotation of whole heads is"
        )),
    }
}

/// Does config.json say that the model was trained for ternary weights and 8-bit activations?
pub(super) fn is_bitnet(json: &Value) -> bool {
    let quantization = &json["quantization_config"];
    let architectures = json["architectures"].as_array().map_or(&[][..], Vec::as_slice);
    json["model_type"] == "bitnet"
        || quantization["quant_method"] == "bitnet"
        || quantization["linear_class"].is_string()
        // 1bitLLM
        || json["weight_bits"] == 1
        || architectures.iter().any(|name| name.as_str().is_some_and(|name| name.starts_with("BitNet") || name.starts_with("Bitnet")))
}

struct Rope {
    theta: f32,
    scaling: RopeScaling,
    factors: Vec<f32>,
}

impl Rope {
    /// Reads either spelling: `rope_theta` and `rope_scaling`, or `rope_parameters` with
    /// everything.
    fn from_json(json: Keys<'_>, defaults: &Defaults, context: usize) -> Result<Self, Problem> {
        let scaling = |key| {
            json.object(key)?.map(|scaling| Self::scaling(scaling, json, context)).transpose()
        };
        let (old, new) = (scaling("rope_scaling")?, scaling("rope_parameters")?);
        if let (Some(old), Some(new)) = (old, new)
            && old != new
        {
            return unsupported(format!("rope_scaling gives {old:?}, and rope_parameters {new:?}"));
        }
        let scaling = new.or(old).unwrap_or(RopeScaling::None);
        if let RopeScaling::Llama3 { context, .. } | RopeScaling::Yarn { context, .. } = scaling {
            let key = "original_max_position_embeddings";
            let beside = json.float(key, context)?;
            if beside != context {
                return unsupported(format!(
                    "{key} is {beside}, and {context} in the rotary parameters"
                ));
            }
        }
        let theta = json.float("rope_theta", defaults.theta)?;
        let parameters = json.object("rope_parameters")?;
        let own =
            parameters.map_or(Ok(theta), |parameters| parameters.float("rope_theta", theta))?;
        if json.get("rope_theta").is_some() && own != theta {
            return unsupported(format!("rope_theta is {theta}, and {own} in rope_parameters"));
        }
        let theta = own;
        let lists = [json.object("rope_scaling")?, parameters].into_iter().flatten();
        let mut lists = lists
            .filter(|_| matches!(scaling, RopeScaling::LongRope { .. }))
            .map(|object| numbers(object, "short_factor"));
        let factors = lists.next().transpose()?.unwrap_or_default();
        if let Some(other) = lists.next().transpose()?
            && other != factors
        {
            return unsupported(format!(
                "rope_scaling has the short_factor {factors:?}, and rope_parameters {other:?}"
            ));
        }
        Ok(Self { theta, scaling, factors })
    }

    /// `json` is a part of `whole`, whose context `context` is, in tokens.
    fn scaling(json: Keys<'_>, whole: Keys<'_>, context: usize) -> Result<RopeScaling, Problem> {
        if let Some((key, _)) = json.0.iter().find(|(_, value)| value.is_object()) {
            return unsupported(format!(
                "separate rotary parameters for `{key}` are not supported"
            ));
        }
        whole_heads(json)?;
        let kind = json.text("rope_type")?.or(json.text("type")?).unwrap_or("default");
        match kind {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear(json.needed("factor")?)),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: json.needed("factor")?,
                low: json.needed("low_freq_factor")?,
                high: json.needed("high_freq_factor")?,
                context: json.needed("original_max_position_embeddings")?,
            }),
            "yarn" => Self::yarn(json, context as f32).map_err(Problem::from),
            "longrope" => Self::longrope(json, whole, context as f32),
            other => {
                let known = "`default`, `linear`, `llama3`, `yarn` and `longrope`";
                unsupported(format!("rotary scaling `{other}` is not supported; {known} are"))
            }
        }
    }

    /// There are factors for texts up to the original context, and others for longer ones. A text
    /// that grows beyond would change what its first tokens were, so only those are supported for
    /// which it makes no difference.
    fn longrope(json: Keys<'_>, whole: Keys<'_>, context: f32) -> Result<RopeScaling, Problem> {
        // Older files have it beside the rotary parameters.
        let key = "original_max_position_embeddings";
        let original = if json.get(key).is_some() || whole.get(key).is_none() {
            json.needed(key)?
        } else {
            whole.needed(key)?
        };
        let beside = whole.float(key, original)?;
        if beside != original {
            return unsupported(format!(
                "{key} is {beside}, and {original} in the rotary parameters"
            ));
        }
        if numbers(json, "short_factor")? != numbers(json, "long_factor")? && context > original {
            return unsupported(format!(
                "longrope with other factors beyond {original} tokens is not supported"
            ));
        }
        let ratio = context / original;
        let factor = json.float("factor", ratio)?;
        // MiniCPM's own code and older transformers take the contexts, newer transformers the
        // factor.
        if json.get("attention_factor").is_none() && (factor - ratio).abs() > 1e-4 * ratio {
            return unsupported(format!(
                "longrope has the factor {factor} and contexts of {original} and {context} tokens, by which readers differ"
            ));
        }
        let usual = if factor <= 1.0 {
            1.0
        } else {
            (1.0 + f64::from(factor).ln() / f64::from(original).ln()).sqrt() as f32
        };
        Ok(RopeScaling::LongRope { attention: json.float("attention_factor", usual)? })
    }

    fn yarn(json: Keys<'_>, context: f32) -> Result<RopeScaling, String> {
        let original = json.float("original_max_position_embeddings", context)?;
        let factor = json.float("factor", context / original)?;
        let both = |mscale: f32, all: f32| {
            if mscale != 0.0 && all != 0.0 {
                yarn_attention(factor, mscale) / yarn_attention(factor, all)
            } else {
                yarn_attention(factor, 1.0)
            }
        };
        let attention = both(json.float("mscale", 0.0)?, json.float("mscale_all_dim", 0.0)?);
        // As in transformers, a bound of 0 is the default.
        let bound = |key, default: f32| {
            json.float(key, 0.0).map(|bound| if bound == 0.0 { default } else { bound })
        };
        Ok(RopeScaling::Yarn {
            factor,
            context: original,
            attention: json.float("attention_factor", attention)?,
            fast: bound("beta_fast", 32.0)?,
            slow: bound("beta_slow", 1.0)?,
            truncate: json.get("truncate").is_none() || json.flag("truncate")?,
        })
    }
}

/// A list of numbers.
fn numbers(json: Keys<'_>, key: &str) -> Result<Vec<f32>, String> {
    let list = json
        .get(key)
        .and_then(|list| list.as_array()?.iter().map(|x| x.as_f64().map(|x| x as f32)).collect());
    list.ok_or_else(|| format!("rotary scaling has no list of numbers {key}"))
}

/// What YaRN multiplies cosines and sines by, for frequencies that are divided by `factor`:
/// 0.1·mscale·ln(factor) + 1.
pub(super) fn yarn_attention(factor: f32, mscale: f32) -> f32 {
    if factor <= 1.0 {
        1.0
    } else {
        (0.1 * f64::from(mscale) * f64::from(factor).ln() + 1.0) as f32
    }
}
